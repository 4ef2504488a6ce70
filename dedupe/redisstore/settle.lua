-- Cuts the outputs off a record. Its retention stays.
-- KEYS[1] record
-- ARGV[1] tag of the token that made it, 5 bytes
-- Returns
--   1  they are gone
--   0  there is no such record, or it had none; nothing was changed
local value = redis.call('GET', KEYS[1])
if not value or #value <= 28 or string.sub(value, 8, 12) ~= ARGV[1] then return 0 end
local kind, keep = string.sub(value, 1, 1), 28
if not string.find('deDEgh', kind, 1, true) then return 0 end
if kind == 'g' or kind == 'h' then -- the group: two bytes of length, and the name
  keep = 30 + string.byte(value, 29) * 256 + (string.byte(value, 30) or 0)
end
if #value <= keep then return 0 end
redis.call('SET', KEYS[1], string.sub(value, 1, keep), 'KEEPTTL')
return 1
