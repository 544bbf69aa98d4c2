-- Token bucket. Twin of token_bucket.py; the frame that calls it is limit.lua.
-- State: HASH {tokens: tokens left, last_refill: Unix seconds, n: see traffic.lua}.

local function token_bucket(key, now_us, amount, patience_us, commit, capacity, per_us, unit, _, debt)
  local found = pcall('HMGET', key, 'tokens', 'last_refill', 'n')
  if found.err then return found.err end
  local full = capacity * unit
  local tokens, last_us = number(found[1]), number(found[2])
  local level, recent, adrift = full, found[3], false
  if tokens then
    adrift = not last_us
    last_us = last_us or now_us / 1000000 -- set by hand
    level = max(floor(tokens * unit + 0.5), -max(debt * unit, SECOND_US * per_us))
    last_us = floor(last_us * 1000000 + 0.5)
    if now_us > last_us then level = level + (now_us - last_us) * per_us end
    if level > full then level = full end
  else
    tokens, last_us, recent = nil, now_us, nil
  end

  local wait_us, need = 0, amount * unit
  if amount > 0 and level < need and level < full and patience_us >= 0 then
    wait_us = ceil((min(need, full) - level) / per_us)
    commit, amount, need = adrift or last_us > now_us, 0, 0 -- no time, or a clock that went back: anchor
  end
  if commit and (amount >= 0 or tokens) then
    level = min(full, level - need)
    if patience_us < 0 then level = max(level, -SECOND_US * per_us) end
    recent, last_us = traffic_added(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'tokens', tokens_text(level, unit),
      'last_refill', seconds_text(now_us), 'n', recent)
    expire(key, ceil(full / per_us))
  end
  return wait_us, max(0, floor(level / unit)), ceil((full - level) / per_us), recent, last_us
end
