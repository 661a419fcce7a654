-- KEYS 1 chains:{user}: the set of chain_index.lua
-- ARGV none
-- Returns the devices whose chains are still saved, the last saved first. Chains end on their own, after their lifetime;
-- removes those from the set.
local prefix, user = string.match(KEYS[1], '^(.*):chains:({[^}]*})$')
local saved, ended = {}, {}
for _, device in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, -1)) do
  local is_saved = redis.call('EXISTS', prefix .. ':chain:' .. user .. ':' .. device) == 1
  table.insert(is_saved and saved or ended, device)
end
if #ended > 0 then
  redis.call('ZREM', KEYS[1], unpack(ended))
end
return saved
