-- KEYS 1 chain:{user}:device: hash of epoch, at (number of changes), next (expected id), d and s (number of ids that
--      were ever done and skipped), d<n> and s<n> (the last 256 of them); or as in chain_save.lua
-- ARGV 1 epoch; 2 number of the change; 3 expected id; 4 lifetime of the key, ms; 5 and 6 the ring, d or s, and the id
--      that it gains. Without them the id that was expected is done.
-- Returns 1 if saved, or if a newer connection or a later change has been (S37); 0 if the change does not follow the
-- saved state: save the whole state. One change costs its id, whatever the number of remembered ids (S59).
local key, epoch, number = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local saved = redis.call('HMGET', key, 'epoch', 'at', 'state', 'next')
if not saved[1] or not (saved[3] or saved[4]) then
  return 0
end
local present, at = tonumber(saved[1]), tonumber(saved[2] or '0')
if present > epoch or (present == epoch and at >= number) then
  return 1
end
-- A state of an older connection may have changes that the newer one, which loaded it earlier, does not know.
if present ~= epoch or at + 1 ~= number then
  return 0
end
if saved[3] then
  local readable, whole = pcall(cjson.decode, saved[3])
  if not readable then
    return 0
  end
  local rings = {d = whole.done, s = whole.skipped or {}}
  local fields = {'next', whole.expected}
  for ring, ids in pairs(rings) do
    for n, id in ipairs(ids) do
      fields[#fields + 1] = ring .. (n - 1)
      fields[#fields + 1] = id
    end
    fields[#fields + 1] = ring
    fields[#fields + 1] = #ids
  end
  if saved[4] then
    redis.call('DEL', key)
  end
  -- The long text makes Redis store the hash as a table: else each of the many fields would be searched for in a list.
  redis.call('HSET', key, unpack(fields))
  redis.call('HDEL', key, 'state')
end
local ring = ARGV[5] or 'd'
local id = ARGV[6] or redis.call('HGET', key, 'next')
local count = tonumber(redis.call('HGET', key, ring) or '0')
redis.call('HSET', key, ring .. count, id, ring, count + 1, 'next', ARGV[3], 'epoch', ARGV[1], 'at', ARGV[2])
redis.call('HDEL', key, ring .. (count - 256))
redis.call('PEXPIRE', key, ARGV[4])
note_saved(key, ARGV[4])
return 1
