-- Acknowledges entries that still belong to a consumer.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  'ack', or 'delete' to delete what all groups have acknowledged
-- ARGV[4…] entry IDs, at most 1,000
-- Returns  the IDs that were refused: not pending for the consumer
-- Errors   NOGROUP
--
-- XACK alone is not fenced: it would remove an entry that another consumer has taken
-- over and works on.
local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local ack, refused = {}, {}
for i = 4, #ARGV do
  if #redis.call('XPENDING', key, group, ARGV[i], ARGV[i], 1, consumer) > 0 then
    ack[#ack + 1] = ARGV[i]
  else
    refused[#refused + 1] = ARGV[i]
  end
end
if #ack > 0 then
  if ARGV[3] == 'delete' then
    redis.call('XACKDEL', key, group, 'ACKED', 'IDS', #ack, unpack(ack))
  else
    redis.call('XACK', key, group, unpack(ack))
  end
end
return refused
