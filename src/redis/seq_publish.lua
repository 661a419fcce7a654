-- KEYS 1 seq:{key}, as in seq_malloc.lua
-- ARGV 1 lock token; 2 count that the caller takes at once; 3 first and 4 last number of a block reserved in the
--      store; 5 epoch of the block; 6 lifetime of the key, ms
-- Returns {"ok", first, last}: one contiguous range, which starts with the previous remainder if the block adjoins it;
--      {"refused"}: another caller has the lock; the caller discards the whole block.
--      {"refused", last, epoch}: numbers up to last are issued, or the newer epoch is in force; the caller discards the
--      block, and reserves above them: the store fell back to an older state.
-- A refused block is a hole, never a repeated number: S7, S10, S11. CURR is set only to issued numbers: S6, S12.
local key, count, first, last, fence =
  KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local saved = redis.call('HMGET', key, 'CURR', 'LAST', 'FENCE', 'LOCK')
if saved[4] ~= ARGV[1] then
  return {'refused'}
end
local curr, end_of = tonumber(saved[1] or '-1'), tonumber(saved[2] or '-1')
if tonumber(saved[3] or '0') > fence or end_of >= first then
  return {'refused', math.max(end_of, 0), tonumber(saved[3] or '0')}
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
