-- KEYS 1 chain:{user}:device: hash of epoch, state
-- ARGV 1 epoch; 2 state; 3 lifetime of the key, ms
-- Returns 1 if saved, 0 if a newer connection has saved before (S37).
local saved = redis.call('HGET', KEYS[1], 'epoch')
if saved and tonumber(saved) > tonumber(ARGV[1]) then
  return 0
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'state', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
