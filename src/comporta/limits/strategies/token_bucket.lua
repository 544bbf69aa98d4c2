-- Token bucket. Lua version of `TokenBucketStrategy.step` (token_bucket.py).
-- State: HASH {tokens: tokens left, last_refill: Unix seconds, n: see recent_traffic.lua, o: the ledger of leased
-- tokens, "<slice>:<tokens leased in it>:<tokens leased in the slice before>"}.
-- A time slice is `slice_us` long; 0 means that the limit has no leases, and the ledger is not read.

-- The functions for a bucket with leased tokens: `rooms`, `refill` and `wait`.
local function bucket_ledger()
  -- When each interval of the ledger ends and the level that fits into the bucket until then; nil without a ledger.
  local function bucket_rooms(ledger, now_us, slice_us, capacity, unit)
    local slice, current, before = match(ledger or '', '^(%d+):(%d+):(%d+)$')
    slice = tonumber(slice)
    if not slice or slice > floor(now_us / slice_us) then return nil end
    local first_us = (slice + 1) * slice_us
    return {first_us, first_us + slice_us, math.huge}, {
      max(0, capacity - current - before) * unit, max(0, capacity - current) * unit, capacity * unit}
  end

  -- The level at now_us, refilled only as far as each interval had room, and the room now.
  local function bucket_refill(level, since_us, now_us, per_us, ends, rooms)
    for i = 1, 3 do
      if since_us < ends[i] then
        local upto_us = min(ends[i], now_us)
        level = min(level + (upto_us - since_us) * per_us, rooms[i])
        since_us = upto_us
        if now_us < ends[i] then return level, rooms[i] end
      end
    end
  end

  -- How long from now_us until the level reaches `need`, which is higher and fits once no token is leased.
  local function bucket_wait(level, need, now_us, per_us, ends, rooms)
    local at_us = now_us
    for i = 1, 3 do
      if at_us < ends[i] then
        local ready_us = at_us + ceil((need - level) / per_us)
        if need <= rooms[i] and ready_us <= ends[i] then return ready_us - now_us end
        level = min(level + (ends[i] - at_us) * per_us, rooms[i])
        at_us = ends[i]
      end
    end
  end

  return bucket_rooms, bucket_refill, bucket_wait
end

local function token_bucket(key, now_us, amount, max_wait_us, commit, capacity, per_us, unit, slice_us, debt)
  local fields = pcall('HMGET', key, 'tokens', 'last_refill', 'n', 'o')
  if fields.err then return fields.err end
  local full = capacity * unit
  local room, ends, rooms, refill, wait = full, nil, nil, nil, nil
  local tokens, last_us = number(fields[1]), number(fields[2])
  local level, recent, lacks_time = full, fields[3], false
  if tokens then
    lacks_time = not last_us -- an operator wrote the tokens with redis-cli
    last_us = last_us or now_us / 1000000
    level = max(floor(tokens * unit + 0.5), -max((capacity + debt) * unit, SECOND_US * per_us))
    last_us = floor(last_us * 1000000 + 0.5)
    if slice_us > 0 and fields[4] then
      local rooms_of
      rooms_of, refill, wait = bucket_ledger()
      ends, rooms = rooms_of(fields[4], now_us, slice_us, capacity, unit)
    end
    if ends then
      level, room = refill(level, min(last_us, now_us), now_us, per_us, ends, rooms)
    elseif now_us > last_us then
      level = level + (now_us - last_us) * per_us
    end
    if level > full then level = full end
  else
    tokens, last_us, recent = nil, now_us, nil
  end

  local wait_us, need = 0, amount * unit
  if amount > 0 and level < need and level < full and max_wait_us >= 0 then
    need = min(need, full)
    wait_us = ends and wait(level, need, now_us, per_us, ends, rooms) or ceil((need - level) / per_us)
    -- without a time, or after the clock went back, write the state at this time and take nothing
    commit, amount, need = lacks_time or last_us > now_us, 0, 0
  end
  if commit and (amount >= 0 or tokens) then
    if max_wait_us == -1 then need = min(need, max(0, level + SECOND_US * per_us)) end
    level = min(room, level - need)
    recent, last_us = traffic_add(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'tokens', tokens_text(level, unit),
      'last_refill', seconds_text(now_us), 'n', recent)
    expire(key, ceil((full - min(0, level)) / per_us))
  end
  local reset_us = ends and wait(level, full, now_us, per_us, ends, rooms) or ceil((full - level) / per_us)
  return wait_us, max(0, floor(level / unit)), reset_us, recent, last_us, ceil((full - level) / unit)
end
