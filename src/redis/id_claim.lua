-- KEYS 1 id:{name}: claimant that has not announced itself yet
-- ARGV 1 claimant; 2 lifetime of the claim, ms
-- Returns 1 if the claimant has the claim, now or from before; 0 if another one has it.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
