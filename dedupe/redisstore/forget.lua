-- Deletes a record, also one that can't be read, but no claim.
-- KEYS[1] record
-- Returns
--   1  deleted
--   0  there is nothing, or a claim; nothing was changed
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 1, 1) == 'c' then return 0 end
return redis.call('DEL', KEYS[1])
