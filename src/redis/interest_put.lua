-- KEYS 1 interest:{conversation}: hash of node/boot -> generation, and of node/boot! -> until (us)
-- ARGV 1 node/boot; 2 generation; 3 lease, ms
-- Returns 1 if the interest was in force already, else 0. Interests expire and are never withdrawn; a new run's interest
-- removes expired ones.
local key, run = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local present, ends = unpack(redis.call('HMGET', key, run, run .. '!'))
if not present then
  local fields = redis.call('HGETALL', key)
  for at = 1, #fields, 2 do
    local name = string.match(fields[at], '^(.*)!$')
    if name and tonumber(fields[at + 1]) <= now then
      redis.call('HDEL', key, name, fields[at])
    end
  end
end
local generation = ARGV[2]
if present and tonumber(present) > tonumber(generation) then
  generation = present
end
redis.call('HSET', key, run, generation, run .. '!', string.format('%.0f', now + tonumber(ARGV[3]) * 1000))
redis.call('PEXPIRE', key, ARGV[3])
if present and ends and now < tonumber(ends) then
  return 1
end
return 0
