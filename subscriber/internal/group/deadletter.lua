-- Moves an entry to the dead letters and acknowledges it.
-- KEYS[1]  stream
-- KEYS[2]  dead-letter stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  entry ID
-- ARGV[4]  MAXLEN of the dead-letter stream
-- ARGV[5]  'ack', or 'delete' to delete it if all groups have acknowledged it
-- ARGV[6…] further fields: name, value; one of them is _dead_origin
-- Returns
--   {'moved', ID in the dead-letter stream}, now or by an earlier try
--   {'anothers'}  pending for another consumer; nothing was done
--   {'nobodys'}   pending for nobody; nothing was done
--   {'gone'}      the entry is deleted; it was acknowledged, if it was pending
-- Errors   NOGROUP, and those of XADD; nothing was done
--
-- XADD comes first: it is what can be refused, and scripts don't roll back.
local key, group, consumer, id = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local row = redis.call('XPENDING', key, group, id, id, 1)[1]
if not row then
  -- After a lost reply it may be our own first try that has done it; and the group may
  -- have been made again since, so that nothing else tells.
  local origin, upTo = nil, '+'
  for i = 6, #ARGV, 2 do
    if ARGV[i] == '_dead_origin' then origin = ARGV[i + 1] end
  end
  for _ = 1, 100 do -- one by one: payloads may be large
    local letter = redis.call('XREVRANGE', KEYS[2], upTo, '-', 'COUNT', 1)[1]
    if not letter then break end
    local fields, last = letter[2], {}
    for i = 1, #fields, 2 do last[fields[i]] = fields[i + 1] end
    if last._dead_origin == origin and last._dead_group == group then return {'moved', letter[1]} end
    upTo = '(' .. letter[1]
  end
  if #redis.call('XRANGE', key, id, id) == 0 then return {'gone'} end
  return {'nobodys'}
end
if row[2] ~= consumer then return {'anothers'} end
local entry = redis.call('XRANGE', key, id, id)[1]
if not entry then
  redis.call('XACK', key, group, id)
  return {'gone'}
end
local fields = entry[2]
for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
local dead = redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[4], '*', unpack(fields))
if ARGV[5] == 'delete' then
  redis.call('XACKDEL', key, group, 'ACKED', 'IDS', 1, id)
else
  redis.call('XACK', key, group, id)
end
return {'moved', dead}
