-- Lengthens a claim.
-- KEYS[1] record
-- ARGV[1] value of the claim: 'c' and the token
-- ARGV[2] lease in milliseconds, from now on
-- ARGV[3] tag of the token, 5 bytes
-- Returns
--   2  it is a record now, made under the token; nothing was changed
--   1  it is held until then
--   0  it is not held by the token; nothing was changed
--
-- Renewals go on while a commit is tried, so one may come after it.
local value = redis.call('GET', KEYS[1])
if not value then return 0 end
if value == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if string.find('deDEgh', string.sub(value, 1, 1), 1, true) and string.sub(value, 8, 12) == ARGV[3] then return 2 end
return 0
