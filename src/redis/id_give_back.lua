-- KEYS 1 id:{name}, as in id_claim.lua
-- ARGV 1 claimant
-- Returns 1 if its claim was removed, 0 if it had none.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
