-- Reads entries without touching them. It is a script so that a client that reads from
-- replicas asks the master.
-- KEYS[1]  stream
-- ARGV[1…] entry IDs
-- Returns  the entries that exist, as XRANGE does
-- Errors   none of its own
local out = {}
for i = 1, #ARGV do
  out[#out + 1] = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[i])[1]
end
return out
