-- KEYS 1 run:{node/boot}: hash of info, beat (renewal counter), until (us), retired
-- ARGV 1 announcement of the node; 2 lease, ms; 3 lifetime of the key, ms
-- Returns the renewal counter, which starts at 1; -1 if this run is retired (S5). By the server's clock (S32).
if redis.call('HGET', KEYS[1], 'retired') then
  return -1
end
local time = redis.call('TIME')
local ends = tonumber(time[1]) * 1000000 + tonumber(time[2]) + tonumber(ARGV[2]) * 1000
redis.call('HSET', KEYS[1], 'info', ARGV[1], 'until', string.format('%.0f', ends))
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return redis.call('HINCRBY', KEYS[1], 'beat', 1)
