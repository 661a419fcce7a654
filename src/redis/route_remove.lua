-- KEYS 1 route:{user}, as in route_set.lua
-- ARGV 1 device; 2 token; 3 its epoch; 4 time for which a deleted row is remembered, ms
-- Returns 1: deleted; 0: no row, and no registration can write one with this token; -1: no row, but one may follow.
-- Compares the whole token: S1, S2, S3, S5. The remembered epoch makes epochs rise even if clocks do not: S9.
local key, device, token, epoch = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local present = redis.call('HGET', key, device) or ''
if present ~= token then
  local gone = redis.call('HGET', key, '#' .. device) or ''
  local seen = tonumber(string.match(present, '/(%d+)$') or '0')
  local left = tonumber(string.match(gone, '^(%d+)@') or '0')
  return math.max(seen, left) >= epoch and 0 or -1
end
redis.call('HDEL', key, device)
redis.call('HSET', key, '#' .. device, string.format('%s@%.0f', ARGV[3], now))
local live = false
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  if string.sub(fields[at], 1, 1) ~= '#' then
    live = true
  else
    local when = tonumber(string.match(fields[at + 1], '@(%d+)$') or '0')
    if when + tonumber(ARGV[4]) * 1000 < now then
      redis.call('HDEL', key, fields[at])
    end
  end
end
if not live then
  redis.call('PEXPIRE', key, ARGV[4])
end
return 1
