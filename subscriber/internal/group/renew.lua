-- Renews entries that still belong to a consumer: their idle time starts again.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3…] entry IDs, ascending, at most 1,000
-- Returns  {IDs that are pending for another consumer, IDs that are pending for nobody and
--          still in the stream, IDs whose entry is deleted, the server's time in milliseconds}
-- Errors   NOGROUP
--
-- XCLAIM alone would take entries back from whoever took them over.
local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local mine = {}
for _, row in ipairs(redis.call('XPENDING', key, group, ARGV[3], ARGV[#ARGV], 1000000, consumer)) do
  mine[row[1]] = true
end
local claim, others, nobodys, gone = {}, {}, {}, {}
for i = 3, #ARGV do
  local id = ARGV[i]
  if mine[id] then
    claim[#claim + 1] = id
  elseif #redis.call('XRANGE', key, id, id) == 0 then
    gone[#gone + 1] = id -- another consumer's XAUTOCLAIM drops records of deleted entries
  elseif #redis.call('XPENDING', key, group, id, id, 1) > 0 then
    others[#others + 1] = id
  else
    nobodys[#nobodys + 1] = id
  end
end
if #claim > 0 then
  claim[#claim + 1] = 'JUSTID'
  local kept = {}
  for _, id in ipairs(redis.call('XCLAIM', key, group, consumer, 0, unpack(claim))) do kept[id] = true end
  for i = 1, #claim - 1 do
    -- XCLAIM has dropped the pending record of a deleted entry.
    if not kept[claim[i]] then gone[#gone + 1] = claim[i] end
  end
end
local time = redis.call('TIME')
return {others, nobodys, gone, time[1] * 1000 + math.floor(time[2] / 1000)}
