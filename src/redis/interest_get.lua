-- KEYS 1 interest:{conversation}, as in interest_put.lua
-- ARGV none
-- Returns {now (us), node/boot, generation, ...} of the runs with a live interest, by the server's clock (S32).
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fields = redis.call('HGETALL', KEYS[1])
local all, live = {}, {string.format('%.0f', now)}
for at = 1, #fields, 2 do
  all[fields[at]] = fields[at + 1]
end
for at = 1, #fields, 2 do
  local ends = all[fields[at] .. '!']
  if ends and now < tonumber(ends) then
    live[#live + 1] = fields[at]
    live[#live + 1] = fields[at + 1]
  end
end
return live
