-- KEYS 1 rows:{node/boot}, as in run_claim.lua
-- ARGV 1 how old a claim is that nobody will use any more, us; then pairs: row as it is listed, "over" or "maybe"
-- Returns how many were dropped. A young claim may belong to a registration that is under way: a sweep must come
-- again for it (S3).
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
