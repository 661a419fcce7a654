-- KEYS 1 route:{user}: hash of device -> node/boot/epoch, of #device -> epoch@time (us) of a deleted row, and of
--      # -> epoch@time of deleted rows that have no field of their own
-- ARGV 1 device; 2 node/boot; 3 epoch; 4 "new", "only" or "again"; 5 for "only": the required present token;
--      6 lifetime of the key, ms; 7 for "new": most devices of the user, 0 for no limit
-- Returns {"set", replaced token or ""}; {"behind", highest epoch seen}: retry with an epoch above it;
--      {"other", present token or ""}: the row has another owner; {"full", ""}: the user has too many devices.
-- The newest epoch wins, and no epoch is used twice for a device: S1, S2, S5, S9.
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
if ARGV[4] == 'new' and present == '' and most > 0 and redis.call('HLEN', key) >= most then
  local live = 0
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 1) ~= '#' then
      live = live + 1
    end
  end
  if live >= most then
    return {'full', ''}
  end
end
if ARGV[4] == 'again' then
  if present ~= token and (seen >= epoch or left > epoch) then
    return {'other', present}
  end
elseif math.max(seen, left) >= epoch then
  return {'behind', string.format('%.0f', math.max(seen, left))}
end
redis.call('HSET', key, device, token)
redis.call('HDEL', key, '#' .. device)
redis.call('PEXPIRE', key, ARGV[6])
if present == token then
  present = ''
end
return {'set', present}
