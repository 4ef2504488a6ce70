-- Makes entries pending for a consumer again that are pending for nobody, since their
-- group was destroyed and made again while the consumer held them.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3…] entry ID, delivery count, until when in milliseconds by the server's clock
--          nobody can have taken it over, for each entry
-- Returns  {one of these for each entry, in order; the server's time in milliseconds}
--   'held'    pending for the consumer, now or already
--   'taken'   another consumer's; or the time is up, and another may have taken it over
--             and acknowledged it
--   'unread'  the group will read it again: made pending, it would be read all the same,
--             and be taken away by that
--   'gone'    not in the stream any more
-- Errors   NOGROUP
local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]

-- IDs are pairs of 64-bit numbers, which Lua's don't hold.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function isAfter(a, b)
  local ams, aseq = a:match('(%d+)-(%d+)')
  local bms, bseq = b:match('(%d+)-(%d+)')
  if ams ~= bms then return less(bms, ams) end
  return less(bseq, aseq)
end

redis.call('XPENDING', key, group, '0-1', '0-1', 1) -- NOGROUP also where the stream is missing
local time = redis.call('TIME')
time = time[1] * 1000 + math.floor(time[2] / 1000)
local last = '0-0'
for _, info in ipairs(redis.call('XINFO', 'GROUPS', key)) do
  local fields = {}
  for i = 1, #info, 2 do fields[info[i]] = info[i + 1] end
  if fields.name == group then last = fields['last-delivered-id'] end
end
local out = {}
for i = 3, #ARGV, 3 do
  local id = ARGV[i]
  local row = redis.call('XPENDING', key, group, id, id, 1)[1]
  if row then
    out[#out + 1] = row[2] == consumer and 'held' or 'taken'
  elseif #redis.call('XRANGE', key, id, id) == 0 then
    out[#out + 1] = 'gone'
  elseif isAfter(id, last) then
    out[#out + 1] = 'unread'
  elseif time >= tonumber(ARGV[i + 2]) then
    out[#out + 1] = 'taken'
  else
    redis.call('XCLAIM', key, group, consumer, 0, id, 'RETRYCOUNT', ARGV[i + 1], 'FORCE', 'JUSTID')
    out[#out + 1] = 'held'
  end
end
return {out, time}
