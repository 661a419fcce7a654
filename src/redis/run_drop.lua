-- KEYS 1 rows:{node/boot}, as in run_claim.lua
-- ARGV 1 age above which a claim is unused, us; then pairs: entry, and "over" to drop it or "maybe" to drop it by age
-- Returns the number of dropped entries. A young claim may belong to a registration in flight, so a sweep must come
-- back for it (S3).
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local dropped = 0
for at = 2, #ARGV, 2 do
  local epoch = tonumber(string.match(ARGV[at], '!(%d+)$') or '0')
  if ARGV[at + 1] == 'over' or epoch + tonumber(ARGV[1]) < now then
    dropped = dropped + redis.call('ZREM', KEYS[1], ARGV[at])
  end
end
return dropped
