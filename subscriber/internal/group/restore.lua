-- Makes entries pending for a consumer again that are pending for nobody, since their
-- group was destroyed and made again while the consumer held them.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3…] entry ID, delivery count, until when in milliseconds by the server's clock
--          nobody can have taken it over, for each entry
-- Returns  {IDs that are another consumer's, or whose time is up: another may have taken them
--          over and acknowledged them; IDs that the group will read again: made pending, they
--          would be read all the same, and be taken away by that; IDs whose entry is deleted;
--          the server's time in milliseconds}; the others are pending for the consumer, now or
--          already
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
local others, unread, gone = {}, {}, {}
for i = 3, #ARGV, 3 do
  local id = ARGV[i]
  local row = redis.call('XPENDING', key, group, id, id, 1)[1]
  if row then
    if row[2] ~= consumer then others[#others + 1] = id end
  elseif #redis.call('XRANGE', key, id, id) == 0 then
    gone[#gone + 1] = id
  elseif isAfter(id, last) then
    unread[#unread + 1] = id
  elseif time >= tonumber(ARGV[i + 2]) then
    others[#others + 1] = id
  else
    redis.call('XCLAIM', key, group, consumer, 0, id, 'RETRYCOUNT', ARGV[i + 1], 'FORCE', 'JUSTID')
  end
end
return {others, unread, gone, time}
