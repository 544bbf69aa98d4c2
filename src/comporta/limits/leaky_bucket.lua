-- Leaky bucket with a bounded queue. Twin of leaky_bucket.py; the frame that calls it is limit.lua.
-- State: HASH {level: turns given out ahead, last_leak: Unix seconds, n: see traffic.lua}.

local function leaky_bucket(key, now_us, amount, patience_us, commit, capacity, per_us, unit, _, debt)
  local found = pcall('HMGET', key, 'level', 'last_leak', 'n')
  if found.err then return found.err end
  local full = capacity * unit
  local stored, last_us = number(found[1]), number(found[2])
  local level, recent, adrift = 0, found[3], false
  if stored then
    adrift = not last_us
    last_us = last_us or now_us / 1000000 -- set by hand
    level = min(floor(stored * unit + 0.5), (capacity + debt + 1) * unit)
    last_us = floor(last_us * 1000000 + 0.5)
    if now_us > last_us then level = level - (now_us - last_us) * per_us end
    if level < 0 then level = 0 end
  else
    stored, last_us, recent = nil, now_us, nil
  end

  local wait_us = 0
  if amount > 0 then
    wait_us = ceil(level / per_us)
    local crowded = level > 0 and level + (amount - 1) * unit > full
    if (wait_us > patience_us or crowded) and patience_us >= 0 then
      wait_us = max(wait_us, patience_us + 1)
      commit, amount = adrift or last_us > now_us, 0 -- no time, or a clock that went back: anchor
    end
  end
  if commit and (amount >= 0 or stored) then
    level = max(0, level + amount * unit)
    if patience_us < 0 then level = min(level, full + unit) end
    recent, last_us = traffic_added(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'level', tokens_text(level, unit),
      'last_leak', seconds_text(now_us), 'n', recent)
    expire(key, ceil((full + unit) / per_us))
  end
  return wait_us, max(0, capacity - ceil(level / unit)), ceil(level / per_us), recent, last_us
end
