-- Gives entries of a consumer to a consumer, which may be the same one, with a delivery
-- count and an idle time.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer that has them
-- ARGV[3]  consumer that gets them
-- ARGV[4]  'leave': then remove the first consumer if nothing is pending for it; else 'stay'
-- ARGV[5…] entry ID, idle milliseconds, delivery count, for each entry
-- Returns  {IDs that were not pending for the first consumer, number of entries still
--          pending for it, 1 if it was removed, IDs whose entry is deleted; their pending
--          records are removed}
-- Errors   NOGROUP
local key, group, from, to = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local notFrom, gone = {}, {}
for i = 5, #ARGV, 3 do
  local id = ARGV[i]
  if #redis.call('XPENDING', key, group, id, id, 1, from) == 0 then
    notFrom[#notFrom + 1] = id
  elseif #redis.call('XCLAIM', key, group, to, 0, id, 'IDLE', ARGV[i + 1], 'RETRYCOUNT', ARGV[i + 2], 'JUSTID') == 0 then
    gone[#gone + 1] = id
  end
end
local left = #redis.call('XPENDING', key, group, '-', '+', 1, from)
-- Removing a consumer drops what is pending for it: check and removal are one step.
if ARGV[4] == 'leave' and left == 0 then
  redis.call('XGROUP', 'DELCONSUMER', key, group, from)
  return {notFrom, left, 1, gone}
end
return {notFrom, left, 0, gone}
