-- Lists entries that are pending for a consumer. It is a script so that a client that
-- reads from replicas asks the master: a replica may not know of them yet.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  ID to start from, as for XPENDING
-- ARGV[4]  most entries to list
-- Returns  entry ID, delivery count, for each entry
-- Errors   NOGROUP
local out = {}
for _, row in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], '+', ARGV[4], ARGV[2])) do
  out[#out + 1] = row[1]
  out[#out + 1] = row[4]
end
return out
