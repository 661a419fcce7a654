-- KEYS 1 chain:{user}:device. This is the first part of chain_save.lua and chain_step.lua, which have the contract.
-- The key chains:{user} is a sorted set of the user's devices, in the order in which their chains were last saved. It is
-- in the slot of the chains, and its name follows from that of a chain, so that no call sends it. A chain of a version
-- without the set is in it from its next change on.
local chains_max = 64
-- Notes that the chain was saved, and deletes those of its user that were saved longest ago, beyond the last 64 (S74).
local function note_saved(chain, lifetime)
  local prefix, user, device = string.match(chain, '^(.*):chain:({[^}]*}):(.*)$')
  local index = prefix .. ':chains:' .. user
  local last = redis.call('ZREVRANGE', index, 0, 0, 'WITHSCORES')
  if last[1] ~= device then
    redis.call('ZADD', index, string.format('%.0f', tonumber(last[2] or '0') + 1), device)
    local surplus = redis.call('ZCARD', index) - chains_max
    if surplus > 0 then
      for _, oldest in ipairs(redis.call('ZRANGE', index, 0, surplus - 1)) do
        redis.call('DEL', prefix .. ':chain:' .. user .. ':' .. oldest)
      end
      redis.call('ZREMRANGEBYRANK', index, 0, surplus - 1)
    end
  end
  redis.call('PEXPIRE', index, lifetime)
end
