-- KEYS 1 chain:{user}:device: hash of epoch, at (number of changes) and the state in one of two forms: state (JSON of
--      expected, done, skipped), or the fields of chain_step.lua. If both are present, a node of version 0.1.0 has
--      written state last.
-- ARGV 1 epoch; 2 state; 3 lifetime of the key, ms; 4 number of changes
-- Returns 1 if saved, 0 if a newer connection has saved before (S37), or this one a later change.
local saved = redis.call('HMGET', KEYS[1], 'epoch', 'at')
local epoch, at = tonumber(saved[1] or '0'), tonumber(saved[2] or '0')
if epoch > tonumber(ARGV[1]) or (epoch == tonumber(ARGV[1]) and at > tonumber(ARGV[4])) then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'state', ARGV[2], 'at', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
note_saved(KEYS[1], ARGV[3])
return 1
