-- KEYS 1 storm:{group}: sorted set of seq -> receive time (ms), the newest ones only; 2 storm:{group}:seconds: hash of
--      second -> messages, and of last -> highest seq that is counted, while there are more
-- ARGV 1 window, ms; 2 lifetime of the keys, ms; 3 most members of the set; 4 length of a part in the hash, s;
--      5 largest time by which a receive time may be ahead, ms; then for each entry the seq of its last message, its
--      number of messages and its receive time, ms
-- Returns the number of messages in the window.
-- Members are seqs, which are unique whatever the time (S31), and make a repeated message change nothing. In the hash,
-- messages count above the last counted seq only. By the server's clock (S32), in whole ms (S35).
local window, most, step = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local since, latest = now - window, now + tonumber(ARGV[5])
local members, entries, parts, has_sums = {}, {}, {}, false
local function count(received, messages)
  local second = math.floor(received / 1000)
  local part = string.format('%.0f', second - second % step)
  parts[part] = (parts[part] or 0) + messages
end
for at = 6, #ARGV, 3 do
  local messages, received = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
  if received > since and received <= latest then
    members[#members + 1] = ARGV[at + 2]
    members[#members + 1] = ARGV[at]
    entries[#entries + 1] = {tonumber(ARGV[at]), messages, received}
    has_sums = has_sums or messages > 1
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', since))
local last = redis.call('HGET', KEYS[2], 'last')
last = last and tonumber(last)
if not last and (has_sums or redis.call('ZCARD', KEYS[1]) + #entries > most) then
  last = 0
  local known = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
  for at = 1, #known, 2 do
    count(tonumber(known[at + 1]), 1)
    last = math.max(last, tonumber(known[at]))
  end
end
for at = 1, #members, 1000 do
  redis.call('ZADD', KEYS[1], unpack(members, at, math.min(at + 999, #members)))
end
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -(most + 1))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
if not last then
  return redis.call('ZCARD', KEYS[1])
end
for _, entry in ipairs(entries) do
  local messages = math.min(entry[2], entry[1] - last)
  if messages > 0 then
    count(entry[3], messages)
    last = entry[1]
  end
end
for part, messages in pairs(parts) do
  redis.call('HINCRBY', KEYS[2], part, messages)
end
redis.call('HSET', KEYS[2], 'last', string.format('%.0f', last))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
local all, total = redis.call('HGETALL', KEYS[2]), 0
for at = 1, #all, 2 do
  if all[at] ~= 'last' then
    if (tonumber(all[at]) + step) * 1000 <= since then
      redis.call('HDEL', KEYS[2], all[at])
    else
      total = total + tonumber(all[at + 1])
    end
  end
end
-- Half, so that a count near the limit does not change the form each time.
if not has_sums and total <= most / 2 then
  redis.call('DEL', KEYS[2])
  return redis.call('ZCARD', KEYS[1])
end
return total
