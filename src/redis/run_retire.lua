-- KEYS 1 run:{node/boot}, as in run_renew.lua
-- ARGV 1 "lapsed" (only if the lease has expired) or "leaving"; 2 time for which it is remembered, ms
-- Returns 1 if the run is retired, now or before; 0 if its lease is live (S5).
if redis.call('HGET', KEYS[1], 'retired') then
  return 1
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local ends = tonumber(redis.call('HGET', KEYS[1], 'until') or '0')
if ARGV[1] == 'lapsed' and now < ends then
  return 0
end
redis.call('HSET', KEYS[1], 'retired', '1')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
