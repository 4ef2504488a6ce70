-- Reads entries without touching them. It is a script so that a client that reads from
-- replicas asks the master.
-- KEYS[1]  stream
-- ARGV[1]  how many bytes of them are enough
-- ARGV[2…] entry IDs
-- Returns  {how many of the IDs it has looked at, at least one; the entries among them that
--          exist, as XRANGE does}
-- Errors   none of its own
local out, seen, bytes = {}, 0, 0
for i = 2, #ARGV do
  local entry = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
  seen = seen + 1
  if entry then
    out[#out + 1] = entry
    for _, text in ipairs(entry[2]) do bytes = bytes + #text end
    if bytes >= tonumber(ARGV[1]) then break end
  end
end
return {seen, out}
