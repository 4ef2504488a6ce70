-- Deletes a claim or a record that is still what the caller saw.
-- KEYS[1] record
-- ARGV[1] value: of the claim that is given up, of the record that is purged
-- Returns
--   1  deleted
--   0  there is nothing, or something else; nothing was changed
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
