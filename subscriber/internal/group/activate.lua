-- Makes a consumer the active one of its group if no other is alive, and takes over what
-- the others have left, lowest ID first. For subscriptions that keep an order.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that asks
-- ARGV[3]  idle milliseconds from which a consumer counts as dead
-- ARGV[4]  most entries to take
-- ARGV[5]  consumer that entries are handed back to
-- ARGV[6]  'leave': then remove the own consumer, if nothing is pending for it, where
--          another is alive, so that it does not count as alive itself; else 'stay'
-- Returns  {lowest ID that is left with others, '' if none is or one of them is alive; how
--          many other consumers are alive, entries handed back, entries of the dead, IDs of
--          deleted entries, the server's time in milliseconds, how many entries were
--          pending for the consumer before}, an entry being ID, delivery count
-- Errors   NOGROUP
--
-- The active consumer is the one that the group has: those that stand by don't read, and
-- so have none. It does not list what is pending for a live consumer, however much that is.
local key, group, me, idle, most, back = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local returned, dead, gone = {}, {}, {}
local time = redis.call('TIME')
time = time[1] * 1000 + math.floor(time[2] / 1000)

redis.call('XPENDING', key, group, '0-1', '0-1', 1) -- NOGROUP also where the stream is missing
local alive, mine, others = 0, nil, 0
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
  local consumer = {}
  for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
  if consumer.name == me then
    mine = consumer.pending
  else
    others = others + consumer.pending
    if consumer.name ~= back and consumer.idle < idle then alive = alive + 1 end
  end
end
if alive > 0 then
  if ARGV[6] == 'leave' and mine == 0 then redis.call('XGROUP', 'DELCONSUMER', key, group, me) end
  return {'', alive, returned, dead, gone, time, mine or 0}
end

-- A sign of life, also where nothing is new and nothing is held. It reads nothing: no own
-- entry has an ID as high as that.
redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', 1, 'STREAMS', key, '18446744073709551615-0')
if others == 0 then return {'', 0, returned, dead, gone, time, mine or 0} end
local taken, left = 0, ''
for _, row in ipairs(redis.call('XPENDING', key, group, '-', '+', most + (mine or 0) + 1)) do
  if row[2] ~= me then
    -- What was handed back to wait keeps those behind it waiting.
    if row[3] < idle or taken == most then
      left = row[1]
      break
    end
    taken = taken + 1
    local list = dead
    if row[2] == back then list = returned end
    if #redis.call('XCLAIM', key, group, me, 0, row[1], 'JUSTID') > 0 then
      list[#list + 1] = row[1]
      list[#list + 1] = row[4]
    else
      redis.call('XACK', key, group, row[1])
      gone[#gone + 1] = row[1]
    end
  end
end
return {left, 0, returned, dead, gone, time, mine or 0}
