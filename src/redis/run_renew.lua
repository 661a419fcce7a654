-- KEYS 1 run:{node/boot}: hash of info, beat, until (us), retired
-- ARGV 1 what the node says of itself; 2 the lease, ms; 3 how long the key lives, ms
-- Returns the beat, 1 at first; -1 when this run was retired (S5). By the server's clock (S32).
if redis.call('HGET', KEYS[1], 'retired') then
  return -1
end
local time = redis.call('TIME')
local ends = tonumber(time[1]) * 1000000 + tonumber(time[2]) + tonumber(ARGV[2]) * 1000
redis.call('HSET', KEYS[1], 'info', ARGV[1], 'until', string.format('%.0f', ends))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('HINCRBY', KEYS[1], 'beat', 1)
