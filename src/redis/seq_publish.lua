-- KEYS 1 seq:{key}, as in seq_malloc.lua
-- ARGV 1 lock token; 2 how many the caller takes at once; 3 first and 4 last number of a block that the store has
--      reserved; 5 the epoch that came with it; 6 how long the key lives, ms
-- Returns {"ok", first, last}: one range without holes, from what was left if the block follows it at once;
--      {"refused"}: the lock is another's, or a newer epoch stands: the caller throws the whole block away.
-- A refused block is a hole, never a number twice: S7, S10, S11. CURR is set only to what was given: S6, S12.
local key, count, first, last, fence =
  KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local saved = redis.call('HMGET', key, 'CURR', 'LAST', 'FENCE', 'LOCK')
if saved[4] ~= ARGV[1] or tonumber(saved[3] or '0') > fence then
  return {'refused'}
end
local curr, end_of = tonumber(saved[1] or '-1'), tonumber(saved[2] or '-1')
if end_of >= first then
  return {'refused'}
end
local from = first
if curr >= 0 and end_of + 1 == first and tonumber(saved[3] or '-1') == fence then
  from = curr + 1
end
local time = redis.call('TIME')
redis.call('HSET', key, 'CURR', string.format('%.0f', from + count - 1), 'LAST', string.format('%.0f', last),
  'TIME', string.format('%.0f', tonumber(time[1]) * 1000000 + tonumber(time[2])),
  'SIZE', string.format('%.0f', last - first + 1), 'FENCE', string.format('%.0f', fence))
redis.call('HDEL', key, 'LOCK', 'UNTIL')
redis.call('PEXPIRE', key, ARGV[6])
return {'ok', from, from + count - 1}
