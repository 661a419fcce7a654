-- KEYS 1 route:{user}: hash of device -> node/boot/epoch, of #device -> epoch@time (us) of a deleted row, and of
--      # -> epoch@time of deleted rows that have no field of their own
-- ARGV 1 device; 2 node/boot; 3 epoch; 4 "new", "only" or "again"; 5 for "only": the required present token;
--      6 lifetime of the key, ms; for "new": 7 most devices of the user, 0 for no limit; 8 what may have one session:
--      "device", "class" or "user"; 9 at the limit: "refuse" or "replace" the oldest; 10 most rows replaced
-- Returns {"set", replaced token or "", and device and token of each row of another device that it replaces};
--      {"behind", highest epoch seen}: retry with an epoch above it; {"other", present token or ""}: the row has another
--      owner; {"full", ""}: the user has too many devices.
-- The newest epoch wins, and no epoch is used twice for a device: S1, S2, S5, S9. Rows of other devices stay for their
-- own connections to remove, so that no departure is lost (S5): a login that dies here is repeated by the next one. All
-- of them are below the new epoch, so of two logins exactly one replaces the other (S1, S2).
local key, device, epoch = KEYS[1], ARGV[1], tonumber(ARGV[3])
local token = ARGV[2] .. '/' .. ARGV[3]
local most = tonumber(ARGV[7])
local present = redis.call('HGET', key, device) or ''
local gone = redis.call('HGET', key, '#' .. device) or ''
local all = redis.call('HGET', key, '#') or ''
local seen = tonumber(string.match(present, '/(%d+)$') or '0')
local left = tonumber(string.match(gone, '^(%d+)@') or '0')
if present == '' then
  left = math.max(left, tonumber(string.match(all, '^(%d+)@') or '0'))
end
if ARGV[4] == 'only' and present ~= ARGV[5] then
  return {'other', present}
end
local function installation(id)
  return string.match(id, '^(.*)%-%d%d?%d?$') or id
end
local evicted, newest = {}, 0
local by, full = ARGV[8], most > 0 and redis.call('HLEN', key) >= most
if ARGV[4] == 'new' and (full or by == 'class' or by == 'user') then
  -- From the newest session to the oldest: one that a newer one excludes goes, and what exceeds the limit.
  local rows, fields, rivals, staying = {}, redis.call('HGETALL', key), {}, 0
  for at = 1, #fields, 2 do
    if string.sub(fields[at], 1, 1) ~= '#' and fields[at] ~= device then
      rows[#rows + 1] = {fields[at], fields[at + 1], tonumber(string.match(fields[at + 1], '/(%d+)$') or '0')}
    end
  end
  table.sort(rows, function(a, b) return a[3] > b[3] end)
  table.insert(rows, 1, {device})
  for at, row in ipairs(rows) do
    local name = by == 'user' and '' or by == 'class' and string.match(row[1], '^[^-]*')
    local own, goes = installation(row[1]), false
    if name then
      local seen = rivals[name] or {own, false}
      seen[2] = seen[2] or seen[1] ~= own
      rivals[name], goes = seen, seen[2]
    end
    if goes or most > 0 and ARGV[9] == 'replace' and staying >= most then
      evicted[#evicted + 1] = row
      newest = math.max(newest, row[3])
    else
      staying = staying + 1
    end
  end
  if most > 0 and ARGV[9] ~= 'replace' and present == '' and staying > most then
    return {'full', ''}
  end
end
if ARGV[4] == 'again' then
  if present ~= token and (seen >= epoch or left > epoch) then
    return {'other', present}
  end
elseif math.max(seen, left, newest) >= epoch then
  return {'behind', string.format('%.0f', math.max(seen, left, newest))}
end
redis.call('HSET', key, device, token)
redis.call('HDEL', key, '#' .. device)
redis.call('PEXPIRE', key, ARGV[6])
if present == token then
  present = ''
end
local reply = {'set', present}
for at = 1, math.min(#evicted, tonumber(ARGV[10])) do
  reply[#reply + 1] = evicted[at][1]
  reply[#reply + 1] = evicted[at][2]
end
return reply
