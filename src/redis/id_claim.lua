-- KEYS 1 id:{name}: who has claimed it and not announced itself yet
-- ARGV 1 the claimant; 2 how long the claim stands, ms
-- Returns 1 when it is the claimant's now, also when it was before; 0 when it is somebody else's.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
