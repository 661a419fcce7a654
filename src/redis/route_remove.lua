-- KEYS 1 route:{user}, as in route_set.lua
-- ARGV 1 device; 2 token; 3 its epoch; 4 time for which a deleted row is remembered, ms; 5 most deleted rows remembered
-- Returns 1: deleted; 0: no row, and no registration can write one with this token; -1: no row, but one may follow.
-- Compares the whole token: S1, S2, S3, S5. The remembered epoch makes epochs rise even if clocks do not: S9. Of too
-- many deleted rows the oldest are remembered in one field, by the highest of their epochs, so the hash and the time
-- for one removal are bounded.
local key, device, token, epoch = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local present = redis.call('HGET', key, device) or ''
if present ~= token then
  local gone = redis.call('HGET', key, '#' .. device) or ''
  local all = redis.call('HGET', key, '#') or ''
  local seen = tonumber(string.match(present, '/(%d+)$') or '0')
  local left = tonumber(string.match(gone, '^(%d+)@') or '0')
  local floor = tonumber(string.match(all, '^(%d+)@') or '0')
  return math.max(seen, left, floor) >= epoch and 0 or -1
end
redis.call('HDEL', key, device)
redis.call('HSET', key, '#' .. device, string.format('%s@%.0f', ARGV[3], now))
local live, gone, floor = false, {}, 0
local fields = redis.call('HGETALL', key)
for at = 1, #fields, 2 do
  local field = fields[at]
  if string.sub(field, 1, 1) ~= '#' then
    live = true
  else
    local left, when = string.match(fields[at + 1], '^(%d+)@(%d+)$')
    left, when = tonumber(left or '0'), tonumber(when or '0')
    if when + tonumber(ARGV[4]) * 1000 < now then
      redis.call('HDEL', key, field)
    elseif field == '#' then
      floor = left
    else
      gone[#gone + 1] = {field, left, when}
    end
  end
end
if #gone > tonumber(ARGV[5]) then
  table.sort(gone, function(a, b) return a[3] < b[3] end)
  for at = 1, #gone - math.floor(tonumber(ARGV[5]) / 2) do
    floor = math.max(floor, gone[at][2])
    redis.call('HDEL', key, gone[at][1])
  end
  redis.call('HSET', key, '#', string.format('%.0f@%.0f', floor, now))
end
if not live then
  redis.call('PEXPIRE', key, ARGV[4])
end
return 1
