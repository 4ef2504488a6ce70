-- Takes over the pending entries of all other consumers once none of these is alive,
-- lowest ID first. For subscriptions that keep an order.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that takes
-- ARGV[3]  idle milliseconds from which an entry's consumer counts as dead
-- ARGV[4]  most entries to take
-- ARGV[5]  consumer that entries are handed back to
-- Returns  {entries of others that are left, how many of those belong to a live consumer,
--          entries handed back, entries of the dead, IDs of deleted entries, the server's
--          time in milliseconds}, an entry being ID, delivery count
-- Errors   NOGROUP
local key, group, me, idle, most, back = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local returned, dead, gone = {}, {}, {}
local time = redis.call('TIME')
time = time[1] * 1000 + math.floor(time[2] / 1000)

local summary = redis.call('XPENDING', key, group)
local others = summary[1]
for _, row in ipairs(summary[4] or {}) do
  if row[1] == me then others = others - tonumber(row[2]) end
end
if others == 0 then return {0, 0, returned, dead, gone, time} end

local rows, idles = redis.call('XPENDING', key, group, 'IDLE', idle, '-', '+', summary[1]), {}
for _, row in ipairs(rows) do
  if row[2] ~= me then idles[#idles + 1] = row end
end
local alive = others - #idles
if alive > 0 then return {others, alive, returned, dead, gone, time} end
for i = 1, math.min(most, #idles) do
  local row = idles[i]
  local list = dead
  if row[2] == back then list = returned end
  if #redis.call('XCLAIM', key, group, me, idle, row[1], 'JUSTID') > 0 then
    list[#list + 1] = row[1]
    list[#list + 1] = row[4]
  else
    redis.call('XACK', key, group, row[1])
    gone[#gone + 1] = row[1]
  end
end
return {others - math.min(most, #idles), 0, returned, dead, gone, time}
