-- KEYS 1 route:{user}: hash of device -> node/boot/epoch, and of #device -> epoch@time (us) of a deleted row
-- ARGV 1 device; 2 node/boot; 3 epoch; 4 "new", "only" or "again"; 5 for "only": the required present token;
--      6 lifetime of the key, ms
-- Returns {"set", replaced token or ""}; {"behind", highest epoch seen}: retry with an epoch above it;
--      {"other", present token or ""}: the row has another owner.
-- The newest epoch wins, and no epoch is used twice for a device: S1, S2, S5, S9.
local key, device, epoch = KEYS[1], ARGV[1], tonumber(ARGV[3])
local token = ARGV[2] .. '/' .. ARGV[3]
local present = redis.call('HGET', key, device) or ''
local gone = redis.call('HGET', key, '#' .. device) or ''
local seen = tonumber(string.match(present, '/(%d+)$') or '0')
local left = tonumber(string.match(gone, '^(%d+)@') or '0')
if ARGV[4] == 'only' and present ~= ARGV[5] then
  return {'other', present}
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
