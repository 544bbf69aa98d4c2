-- Leaky bucket with a bounded queue. Lua version of `LeakyBucketStrategy.step` (leaky_bucket.py).
-- State: HASH {level: turns assigned ahead, last_leak: Unix seconds, n: see recent_traffic.lua}.

local function leaky_bucket(key, now_us, amount, max_wait_us, commit, capacity, per_us, unit, _, debt)
  local fields = pcall('HMGET', key, 'level', 'last_leak', 'n')
  if fields.err then return fields.err end
  local full = capacity * unit
  local stored, last_us = number(fields[1]), number(fields[2])
  local level, recent, lacks_time = 0, fields[3], false
  if stored then
    lacks_time = not last_us -- an operator wrote the level with redis-cli
    last_us = last_us or now_us / 1000000
    level = min(floor(stored * unit + 0.5), (2 * (capacity + debt) + 1) * unit)
    last_us = floor(last_us * 1000000 + 0.5)
    if now_us > last_us then level = level - (now_us - last_us) * per_us end
    if level < 0 then level = 0 end
  else
    stored, last_us, recent = nil, now_us, nil
  end

  local wait_us = 0
  if amount > 0 then
    wait_us = ceil(level / per_us)
    local is_full = level > 0 and level + (amount - 1) * unit > full
    if (wait_us > max_wait_us or is_full) and max_wait_us >= 0 then
      wait_us = max(wait_us, max_wait_us + 1)
      -- without a time, or after the clock went back, write the state at this time and take nothing
      commit, amount = lacks_time or last_us > now_us, 0
    end
  end
  if commit and (amount >= 0 or stored) then
    local turns = amount * unit
    if max_wait_us == -1 then turns = min(turns, max(0, full + unit - level)) end
    level = max(0, level + turns)
    recent, last_us = traffic_add(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'level', tokens_text(level, unit),
      'last_leak', seconds_text(now_us), 'n', recent)
    expire(key, ceil(max(level, full + unit) / per_us))
  end
  return wait_us, max(0, capacity - ceil(level / unit)), ceil(level / per_us), recent, last_us, ceil(level / unit)
end
