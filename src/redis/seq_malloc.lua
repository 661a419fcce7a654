-- KEYS 1 seq:{key}: hash of CURR (last issued number), LAST (last of the block), TIME (of the last refill, us),
--      SIZE (of that block), FENCE (epoch of the store), LOCK (token of the refilling caller), UNTIL (its expiry, us),
--      WINDOW (messages of the last window and the storm among them, separated by commas: first number of the storm or 0, its
--      start, its largest count, start of cooling or 0, 0 until its start is known or 2 once it is over, time of the last
--      report, then first ms, last ms and messages of each run)
-- ARGV 1 count; 2 lock token: 128 random bits of the caller; 3 epoch known to the caller; 4 lock time, ms;
--      5 highest number of this key known to the caller; 6 longest lock time of any caller, ms; 7 messages to count in
--      the window; 8 length of the window, ms, 0 without one; 9 largest count that is no storm;
--      10 first number of a storm whose last change the caller knows, or 0
-- Returns {"ok", first, last, fence}, with a window {..., count, change, first number of the storm or 0, its start, its
--      largest count, 1 if it cools}, where the change is 1 for a storm that starts and 2 for one that ends; {"missing",
--      0, 0} and {"exhausted", us since the last refill, its size}: the caller has acquired the lock, reserves a block in
--      the store and calls seq_publish.lua; {"locked", us until the lock expires}. Without a count it issues nothing,
--      acquires no lock, and returns {"none"} where there is no window.
-- A change is returned again two seconds later, until a caller has it: its reply may have been lost.
-- Numbers of an older epoch, or below a known issued number, count as missing: S9. A lock has the caller's token and
-- expires: S7, S10. A request larger than the remainder takes nothing: S6. Times are by the server's clock: S12.
local key, count, fence, seen = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local saved = redis.call('HMGET', key, 'CURR', 'LAST', 'TIME', 'SIZE', 'FENCE', 'LOCK', 'UNTIL', 'WINDOW')
local curr, last = tonumber(saved[1] or '-1'), tonumber(saved[2] or '-1')
local there = curr >= 0 and last >= curr and tonumber(saved[5] or '-1') >= fence and curr >= seen

-- Messages within 1/16 of the window share a run, which counts while all of it is within the window: at most 18 runs, no
-- storm too early, and one that is found at most 1/16 late. A clock that is set back forgets later runs, and makes none.
local function counted(newest)
  local width, threshold, hits, known = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[7]), tonumber(ARGV[10])
  if width == 0 then
    return {}
  end
  local at = math.floor(now / 1000)
  local share = math.floor(width / 16)
  local old = {}
  for value in string.gmatch(saved[8] or '0,0,0,0,0,0', '[^,]+') do
    old[#old + 1] = tonumber(value)
  end
  local storm, since, peak, cooling, reported, reported_at = old[1], old[2], old[3], old[4], old[5], old[6]
  local runs, total = {0, 0, 0, 0, 0, 0}, 0
  for i = 7, #old, 3 do
    if old[i] + width > at and old[i + 1] <= at + share then
      runs[#runs + 1], runs[#runs + 2], runs[#runs + 3] = old[i], old[i + 1], old[i + 2]
      total = total + old[i + 2]
    end
  end
  if hits > 0 then
    local n = #runs
    if n > 6 and runs[n - 2] + share > at then
      runs[n - 1], runs[n] = math.max(runs[n - 1], at), runs[n] + hits
    else
      runs[n + 1], runs[n + 2], runs[n + 3] = at, at, hits
    end
    total = total + hits
  end
  if storm > 0 and known == storm then
    if reported == 2 then
      storm, since, peak, cooling, reported = 0, 0, 0, 0, 0
    else
      reported = 1
    end
  end
  local change = 0
  if hits > 0 and total > threshold and (storm == 0 or reported == 2) then
    storm, since, peak, cooling = math.max(newest - math.min(total - threshold, hits) + 1, 1), at, total, 0
    reported, change = 0, 1
  elseif storm > 0 and reported ~= 2 then
    peak, cooling = math.max(peak, total), math.min(cooling, at)
    if total > threshold then
      cooling = 0
    elseif cooling == 0 and total <= threshold / 2 then
      cooling = at
    elseif cooling > 0 and at - cooling >= width then
      reported, change = 2, 2
    end
  end
  if change == 0 and storm > 0 and reported ~= 1 and math.abs(at - reported_at) >= 2000 then
    change = reported == 0 and 1 or 2
  end
  if change > 0 then
    reported_at = at
  end
  runs[1], runs[2], runs[3], runs[4], runs[5], runs[6] = storm, since, peak, cooling, reported, reported_at
  if hits > 0 or storm > 0 or saved[8] then
    for i = 1, #runs do
      runs[i] = string.format('%.0f', runs[i])
    end
    redis.call('HSET', key, 'WINDOW', table.concat(runs, ','))
    if not there then
      redis.call('PEXPIRE', key, 86400000)
    end
  end
  -- Nobody follows a storm that is over.
  local shown = (reported == 2 and change == 0) and 0 or storm
  return {total, change, shown, since, peak, cooling > 0 and 1 or 0}
end

if count == 0 and not saved[8] and tonumber(ARGV[7]) == 0 then
  return {'none'}
end
if count == 0 or (there and curr + count <= last) then
  if count > 0 then
    redis.call('HSET', key, 'CURR', string.format('%.0f', curr + count))
  end
  curr = math.max(curr, 0)
  local reply = {'ok', curr + 1, curr + count, tonumber(saved[5] or '0')}
  for _, value in ipairs(counted(curr + count)) do
    reply[#reply + 1] = value
  end
  return reply
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
