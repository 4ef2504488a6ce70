-- Acknowledges entries that still belong to a consumer.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  'ack', or 'delete' to delete what all groups have acknowledged
-- ARGV[4]  until when, in milliseconds by the server's clock, nobody can have taken one
--          of the entries over, since they were renewed; 0 if that is unknown
-- ARGV[5…] entry IDs, at most 1,000
-- Returns  {IDs that are pending for another consumer, IDs that are not pending and still
--          in the stream}; both were left alone
-- Errors   NOGROUP
--
-- XACK alone is not fenced: it would remove an entry that another consumer has taken
-- over and works on. Asking for the owner of each entry costs more than acknowledging
-- it, so it is asked only when the time is up; the server looks at its own clock when it
-- runs this, however long the command was on its way.
local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local function acknowledge(count, ...)
  if ARGV[3] == 'delete' then
    redis.call('XACKDEL', key, group, 'ACKED', 'IDS', count, ...)
  else
    redis.call('XACK', key, group, ...)
  end
end

local time = redis.call('TIME')
if time[1] * 1000 + time[2] / 1000 < tonumber(ARGV[4]) then
  acknowledge(#ARGV - 4, unpack(ARGV, 5))
  return {{}, {}}
end
local mine, others, absent = {}, {}, {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local row = redis.call('XPENDING', key, group, id, id, 1)[1]
  if row and row[2] == consumer then
    mine[#mine + 1] = id
  elseif row then
    others[#others + 1] = id
  elseif #redis.call('XRANGE', key, id, id) > 0 then
    absent[#absent + 1] = id
  end
end
if #mine > 0 then acknowledge(#mine, unpack(mine)) end
return {others, absent}
