-- KEYS 1 hits:length:key: sorted set of hits, scored with their time in us
-- ARGV 1 length of the window, us; 2 limit, at least 1; 3 name of the hit: 128 random bits of the caller
-- Returns 0 if the hit was counted, otherwise the time until it would be, us. Exact.
-- The server's clock in us (S32, S34); names come from the caller, never from math.random (S31); PEXPIRE (S35).
local length, limit = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - length))
-- Hits in the future are left from before the clock was set back; drop them, so that no caller waits for them (S36).
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf')
local count = redis.call('ZCARD', KEYS[1])
if count >= limit then
  local last = redis.call('ZRANGE', KEYS[1], count - limit, count - limit, 'WITHSCORES')
  return math.max(tonumber(last[2]) + length - now, 1)
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[3])
redis.call('PEXPIRE', KEYS[1], math.ceil(length / 1000))
return 0
