-- KEYS 1 count:length:key: hash of start (us), now (hits in this bucket), before (hits in the previous one)
-- ARGV 1 length of the window, us; 2 limit, at least 1; 3 "hit", or "undo"
-- Returns 0 if the hit was counted, otherwise the time until it would be, us.
-- Assumes that the previous bucket's hits are spread evenly: the error is at most one bucket's hits, and zero under
-- an even load. 80 bytes for any limit (S31); the server's clock (S32); PEXPIRE (S35).
local key, length, limit = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local saved = redis.call('HMGET', key, 'start', 'now', 'before')
local start, hits, before = tonumber(saved[1] or now), tonumber(saved[2] or '0'), tonumber(saved[3] or '0')
if ARGV[3] == 'undo' then
  if hits > 0 then
    redis.call('HINCRBY', key, 'now', -1)
  end
  return 0
end
if now < start then
  start = now
end
local passed = math.floor((now - start) / length)
if passed > 0 then
  before = passed == 1 and hits or 0
  hits = 0
  start = start + passed * length
end
local age = now - start
if hits + 1 > limit then
  return math.ceil(length - age + length * (1 - (limit - 1) / hits))
end
local room = limit - 1 - hits
if before > 0 and before * (1 - age / length) > room then
  return math.max(math.ceil(length * (1 - room / before) - age), 1)
end
redis.call('HSET', key, 'start', string.format('%.0f', start), 'now', hits + 1, 'before', before)
redis.call('PEXPIRE', key, math.ceil(length / 500))
return 0
