-- KEYS limit:{lNN}:<rule>:<subject>: packed log of the permits that were granted, each of one slot
-- ARGV for each key: 1 permits wanted; 2 earlier uses that are charged; 3 limit; 4 window, us; 5 life of a permit, us
-- Returns for each key the permits granted, the time until one more can be granted (us), and what counts now.
-- The form of a value and the rules are those of `GrantLog` in protocol/src/machine/permit/grant.rs, byte by byte. What is
-- granted counts for the window and the life of a permit, by the server's clock (S32) in us (S34). Expires after that (S35).
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local most_runs, exact_max, parts, largest = 34, 16, 33, 4294967295
local forms = {}
local function form(runs)
  forms[runs] = forms[runs] or '<' .. string.rep('I8I4', runs)
  return forms[runs]
end
local function grant(key, want, charge, limit, window, life)
  local counts_for = window + life
  -- Last time and count of each run, one after the other.
  local first, log, size, used = 0, {}, 0, charge
  local value = redis.call('GET', key) or ''
  local runs = (#value - 8) / 12
  if runs >= 0 and runs == math.floor(runs) and runs <= most_runs and string.byte(value) == 1 then
    first = struct.unpack('<I7', value, 2)
    log = {struct.unpack(form(runs), value, 9)}
    for at = 1, 2 * runs, 2 do
      -- A clock that was set back: what was granted later counts as granted now (S36).
      local last, count = math.min(log[at], now), log[at + 1]
      if last + counts_for >= now then
        log[size + 1], log[size + 2] = last, count
        size = size + 2
        used = used + count
      end
    end
  end
  first = math.min(first, now)
  local granted = math.min(want, math.max(0, limit - used))
  local merge = 1
  if limit > exact_max then
    merge = math.ceil(counts_for / parts)
  end
  if granted + charge > 0 then
    if size > 0 and now - first < merge then
      log[size - 1] = now
      log[size] = math.min(log[size] + granted + charge, largest)
    else
      log[size + 1], log[size + 2] = now, math.min(granted + charge, largest)
      size = size + 2
      first = now
    end
  end
  if size > 2 * most_runs then
    local closest = 1
    for at = 3, size - 3, 2 do
      if log[at + 2] - log[at] < log[closest + 2] - log[closest] then
        closest = at
      end
    end
    log[closest + 3] = math.min(log[closest + 3] + log[closest + 1], largest)
    table.remove(log, closest)
    table.remove(log, closest)
    size = size - 2
  end
  used = used + granted
  local wait = 0
  if granted < want then
    local left = used
    for at = 1, size, 2 do
      left = math.max(0, left - log[at + 1])
      wait = log[at] + counts_for + 1 - now
      if left < limit then
        break
      end
    end
  end
  if size == 0 then
    if value ~= '' then
      redis.call('DEL', key)
    end
  else
    local after = struct.pack('<I1I7', 1, first) .. struct.pack(form(size / 2), unpack(log, 1, size))
    if after ~= value then
      redis.call('SET', key, after, 'PX', string.format('%.0f', math.ceil(counts_for / 1000) + 1))
    end
  end
  return granted, wait, used
end
local answers = {}
for at, key in ipairs(KEYS) do
  local from = 5 * at - 5
  local granted, wait, used = grant(key, tonumber(ARGV[from + 1]), tonumber(ARGV[from + 2]),
    tonumber(ARGV[from + 3]), tonumber(ARGV[from + 4]), tonumber(ARGV[from + 5]))
  answers[3 * at - 2], answers[3 * at - 1], answers[3 * at] = granted, wait, used
end
return answers
