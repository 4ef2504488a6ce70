-- Takes over pending entries: those handed back, and those of consumers that have not
-- renewed them. Delivery counts stay.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that takes
-- ARGV[3]  idle milliseconds from which an entry may be taken
-- ARGV[4]  most entries to take
-- ARGV[5]  consumer that entries are handed back to
-- ARGV[6]  cursor of the search for dead consumers, '0-0' at first
-- Returns  {next cursor, entries handed back, entries of the dead, IDs of deleted entries,
--          the server's time in milliseconds}, an entry being ID, delivery count
-- Errors   NOGROUP
local key, group, me, idle, most, back = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local returned, dead, gone = {}, {}, {}

local rows = redis.call('XPENDING', key, group, 'IDLE', idle, '-', '+', most, back)
for _, row in ipairs(rows) do
  if #redis.call('XCLAIM', key, group, me, idle, row[1], 'JUSTID') > 0 then
    returned[#returned + 1] = row[1]
    returned[#returned + 1] = row[4]
  else
    redis.call('XACK', key, group, row[1])
    gone[#gone + 1] = row[1]
  end
end

local cursor = ARGV[6]
most = most - #rows
if most > 0 then
  local reply = redis.call('XAUTOCLAIM', key, group, me, idle, cursor, 'COUNT', most, 'JUSTID')
  cursor = reply[1]
  for _, id in ipairs(reply[2]) do
    local row = redis.call('XPENDING', key, group, id, id, 1)[1]
    dead[#dead + 1] = id
    dead[#dead + 1] = row[4]
  end
  for _, id in ipairs(reply[3] or {}) do gone[#gone + 1] = id end
end
local time = redis.call('TIME')
return {cursor, returned, dead, gone, time[1] * 1000 + math.floor(time[2] / 1000)}
