-- KEYS 1 run:{node/boot}; 2 rows:{node/boot}: sorted set of user!device!epoch, all with score 0
-- ARGV 1 lifetime of both keys, ms; 2 exclusive lower bound of the new epoch, or "" if the entries have epochs;
--      3.. one user!device, or entries user!device!epoch
-- Returns the epoch to register with, "" if none was requested, "retired" if this run is retired.
-- Called before a row is written, so that a row always has its entry in this list: S3, S4, S5.
if redis.call('HGET', KEYS[1], 'retired') then
  return 'retired'
end
local epoch = ''
if ARGV[2] ~= '' then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  epoch = string.format('%.0f', math.max(now, tonumber(ARGV[2]) + 1))
  redis.call('ZADD', KEYS[2], 0, ARGV[3] .. '!' .. epoch)
else
  for at = 3, #ARGV do
    redis.call('ZADD', KEYS[2], 0, ARGV[at])
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return epoch
