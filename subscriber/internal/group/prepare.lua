-- Writes the delivery count of entries that are about to be handed out again, renews
-- them and returns their fields.
-- KEYS[1]  stream
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3…] entry ID, delivery count, for each entry
-- Returns  one of these for each entry, in order:
--   {'ok', fields}
--   {'anothers'}  pending for another consumer
--   {'nobodys'}   pending for nobody
--   {'gone'}      the entry is deleted; its pending record is removed
-- Errors   NOGROUP
local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local out = {}
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local row = redis.call('XPENDING', key, group, id, id, 1)[1]
  if not row then
    out[#out + 1] = {'nobodys'}
  elseif row[2] ~= consumer then
    out[#out + 1] = {'anothers'}
  else
    local entry = redis.call('XCLAIM', key, group, consumer, 0, id, 'RETRYCOUNT', ARGV[i + 1])[1]
    if entry and entry[2] then
      out[#out + 1] = {'ok', entry[2]}
    else
      redis.call('XACK', key, group, id)
      out[#out + 1] = {'gone'}
    end
  end
end
return out
