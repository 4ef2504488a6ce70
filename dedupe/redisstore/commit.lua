-- Turns a claim into the record that its event was handled.
-- KEYS[1] record
-- ARGV[1] value of the claim: 'c' and the token
-- ARGV[2] kind of the record
-- ARGV[3] tag of the token, 5 bytes, fingerprint, 16 bytes, group and outputs
-- ARGV[4] retention in milliseconds
-- Returns
--   1  it is recorded, by this call or by an earlier one of the same token
--   0  the claim is not held by the token; nothing was changed
-- Errors those of SET; nothing was changed
--
-- A record is kind, time in milliseconds (6 bytes), tag, fingerprint, group, outputs.
-- The tag is what makes the script repeatable: the reply of the first call may be lost.
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if value == ARGV[1] then
  local now = redis.call('TIME')
  local ms, at = now[1] * 1000 + math.floor(now[2] / 1000), ''
  for _ = 1, 6 do -- not struct.pack, which servers for tests don't have
    at, ms = string.char(ms % 256) .. at, math.floor(ms / 256)
  end
  redis.call('SET', KEYS[1], ARGV[2] .. at .. ARGV[3], 'PX', ARGV[4])
  return 1
end
if string.find('deDEgh', string.sub(value, 1, 1), 1, true) and string.sub(value, 8, 12) == string.sub(ARGV[3], 1, 5) then return 1 end
return 0
