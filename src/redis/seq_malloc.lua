-- KEYS 1 seq:{key}: hash of CURR (last issued number), LAST (last of the block), TIME (of the last refill, us),
--      SIZE (of that block), FENCE (epoch of the store), LOCK (token of the refilling caller), UNTIL (its expiry, us)
-- ARGV 1 count; 2 lock token: 128 random bits of the caller; 3 epoch known to the caller; 4 lock time, ms;
--      5 highest number of this key known to the caller; 6 longest lock time of any caller, ms
-- Returns {"ok", first, last, fence}; {"missing", 0, 0} and {"exhausted", us since the last refill, its size}: the
--      caller has acquired the lock, reserves a block in the store and calls seq_publish.lua; {"locked", us until the
--      lock expires}.
-- Numbers of an older epoch, or below a known issued number, count as missing: S9. A lock has the caller's token and
-- expires: S7, S10. A request larger than the remainder takes nothing: S6. Times are by the server's clock: S12.
local key, count, fence, seen = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local saved = redis.call('HMGET', key, 'CURR', 'LAST', 'TIME', 'SIZE', 'FENCE', 'LOCK', 'UNTIL')
local curr, last = tonumber(saved[1] or '-1'), tonumber(saved[2] or '-1')
local there = curr >= 0 and last >= curr and tonumber(saved[5] or '-1') >= fence and curr >= seen
if there and curr + count <= last then
  redis.call('HSET', key, 'CURR', string.format('%.0f', curr + count))
  return {'ok', curr + 1, curr + count, tonumber(saved[5])}
end
local ends = tonumber(saved[7] or '0')
-- A lock of the caller itself is left from a lost reply. A lock that expires later than any possible one is left from
-- before the clock was set back.
if saved[6] and saved[6] ~= ARGV[2] and now < ends and ends <= now + tonumber(ARGV[6]) * 1000 then
  return {'locked', ends - now}
end
redis.call('HSET', key, 'LOCK', ARGV[2], 'UNTIL', string.format('%.0f', now + tonumber(ARGV[4]) * 1000))
if not there then
  redis.call('HDEL', key, 'CURR', 'LAST')
  redis.call('PEXPIRE', key, 86400000)
  return {'missing', 0, 0}
end
return {'exhausted', now - tonumber(saved[3] or now), tonumber(saved[4] or '0')}
