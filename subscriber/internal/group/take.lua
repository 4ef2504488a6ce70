-- Takes over pending entries: those handed back, and those of consumers that have not
-- renewed them. Delivery counts stay.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that takes
-- ARGV[3]  idle milliseconds from which an entry may be taken
-- ARGV[4]  most entries to take
-- ARGV[5]  consumer that entries are handed back to
-- ARGV[6]  'all', or 'back' for those handed back alone, which costs next to nothing
-- Returns  {entries handed back, entries of the dead, IDs of deleted entries, the server's
--          time in milliseconds}, an entry being ID, delivery count
-- Errors   NOGROUP
--
-- XAUTOCLAIM does not tell whom it took an entry from, and drops the records of deleted
-- entries of live consumers, too.
local key, group, me, idle, most, back = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local returned, dead, gone = {}, {}, {}
local rows
if ARGV[6] == 'all' then
  rows = redis.call('XPENDING', key, group, 'IDLE', idle, '-', '+', most)
else
  rows = redis.call('XPENDING', key, group, 'IDLE', idle, '-', '+', most, back)
end
for _, row in ipairs(rows) do
  local id = row[1]
  local list = dead
  if row[2] == back then list = returned end
  if row[2] == me then
    -- The heartbeat is late; it will renew it.
  elseif #redis.call('XCLAIM', key, group, me, idle, id, 'JUSTID') > 0 then
    list[#list + 1] = id
    list[#list + 1] = row[4]
  else
    redis.call('XACK', key, group, id)
    gone[#gone + 1] = id
  end
end
local time = redis.call('TIME')
return {returned, dead, gone, time[1] * 1000 + math.floor(time[2] / 1000)}
