-- Lengthens a claim.
-- KEYS[1] record
-- ARGV[1] value of the claim: 'c' and the token
-- ARGV[2] lease in milliseconds, from now on
-- Returns
--   1  it is held until then
--   0  it is not held by the token; nothing was changed
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
