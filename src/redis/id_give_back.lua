-- KEYS 1 id:{name}, as in id_claim.lua
-- ARGV 1 the claimant
-- Returns 1 when its claim was taken away.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
