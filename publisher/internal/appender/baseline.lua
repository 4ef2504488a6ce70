-- XINFO STREAM without the first and the last entry, which may be large.
-- KEYS[1]  stream
-- Returns  the fields of XINFO STREAM as a flat list of names and values.
-- Errors   ERR no such key; WRONGTYPE
local reply = redis.call('XINFO', 'STREAM', KEYS[1])
local flat = {}
for i = 1, #reply, 2 do
  if reply[i] ~= 'first-entry' and reply[i] ~= 'last-entry' then
    flat[#flat + 1] = reply[i]
    flat[#flat + 1] = reply[i + 1]
  end
end
return flat
