-- KEYS 1 run:{node/boot}, as in run_renew.lua; 2 rows:{node/boot}, as in run_claim.lua
-- ARGV none
-- Returns {info or "", renewal counter, "live" | "lapsed" | "retired", number of entries}, by the server's clock (S32).
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local run = redis.call('HMGET', KEYS[1], 'info', 'beat', 'until', 'retired')
local lease = 'lapsed'
if run[4] then
  lease = 'retired'
elseif run[3] and now < tonumber(run[3]) then
  lease = 'live'
end
return {run[1] or '', tonumber(run[2] or '0'), lease, redis.call('ZCARD', KEYS[2])}
