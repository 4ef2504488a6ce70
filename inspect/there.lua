-- Tells which entries are in a stream, without sending them.
-- KEYS[1]  stream
-- ARGV[…]  entry IDs
-- Returns  1 or 0 for each
local out = {}
for i, id in ipairs(ARGV) do
  out[i] = #redis.call('XRANGE', KEYS[1], id, id)
end
return out
