-- Removes consumers that nothing is pending for and that have not been seen for a
-- while. Their processes are gone; one that is not gets its consumer back by its next
-- read.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that asks
-- ARGV[3]  idle milliseconds
-- ARGV[4]  consumer that stays in any case
-- Returns  number of consumers removed
-- Errors   NOGROUP
local removed = 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
  if consumer.pending == 0 and consumer.idle >= tonumber(ARGV[3])
    and consumer.name ~= ARGV[2] and consumer.name ~= ARGV[4] then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
    removed = removed + 1
  end
end
return removed
