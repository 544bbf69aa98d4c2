-- Token bucket. Twin of token_bucket.py; the frame that calls it is limit.lua.
-- State: HASH {tokens: tokens left, last_refill: Unix seconds, n: see traffic.lua, o: the book of what is out on
-- lease, "<slice>:<units leased in it>:<units leased in the slice before>"}.
-- A slice of time is as long as the argument `slice_us`; with 0 there are no leases, and no book is read.

-- Until when how much fits into the bucket, as tokens that are out come off the book; nothing without a book.
local function bucket_rooms(book, now_us, slice_us, capacity, unit)
  local slice, current, before = match(book or '', '^(%d+):(%d+):(%d+)$')
  slice = tonumber(slice)
  if not slice or slice > floor(now_us / slice_us) then return nil end
  local first_us = (slice + 1) * slice_us
  return {first_us, first_us + slice_us, math.huge}, {
    max(0, capacity - current - before) * unit, max(0, capacity - current) * unit, capacity * unit}
end

-- The level at now_us, refilled no further than there was room at each moment, and the room there is now.
local function bucket_settled(level, since_us, now_us, per_us, ends, rooms)
  for i = 1, 3 do
    if since_us < ends[i] then
      local upto_us = min(ends[i], now_us)
      level = min(level + (upto_us - since_us) * per_us, rooms[i])
      since_us = upto_us
      if now_us < ends[i] then return level, rooms[i] end
    end
  end
end

-- How long from now_us until the level is `need`, which is above it and fits once nothing is out.
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

local function token_bucket(key, now_us, amount, patience_us, commit, capacity, per_us, unit, slice_us, debt)
  local found = pcall('HMGET', key, 'tokens', 'last_refill', 'n', 'o')
  if found.err then return found.err end
  local full = capacity * unit
  local room, ends, rooms = full, nil, nil
  local tokens, last_us = number(found[1]), number(found[2])
  local level, recent, adrift = full, found[3], false
  if tokens then
    adrift = not last_us
    last_us = last_us or now_us / 1000000 -- set by hand
    level = max(floor(tokens * unit + 0.5), -max(debt * unit, SECOND_US * per_us))
    last_us = floor(last_us * 1000000 + 0.5)
    if slice_us > 0 then ends, rooms = bucket_rooms(found[4], now_us, slice_us, capacity, unit) end
    if ends then
      level, room = bucket_settled(level, min(last_us, now_us), now_us, per_us, ends, rooms)
    elseif now_us > last_us then
      level = level + (now_us - last_us) * per_us
    end
    if level > full then level = full end
  else
    tokens, last_us, recent = nil, now_us, nil
  end

  local wait_us, need = 0, amount * unit
  if amount > 0 and level < need and level < full and patience_us >= 0 then
    need = min(need, full)
    wait_us = ends and bucket_wait(level, need, now_us, per_us, ends, rooms) or ceil((need - level) / per_us)
    commit, amount, need = adrift or last_us > now_us, 0, 0 -- no time, or a clock that went back: anchor
  end
  if commit and (amount >= 0 or tokens) then
    level = min(room, level - need)
    if patience_us < 0 then level = max(level, -SECOND_US * per_us) end
    recent, last_us = traffic_added(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'tokens', tokens_text(level, unit),
      'last_refill', seconds_text(now_us), 'n', recent)
    expire(key, ceil(full / per_us))
  end
  local reset_us = ends and bucket_wait(level, full, now_us, per_us, ends, rooms) or ceil((full - level) / per_us)
  return wait_us, max(0, floor(level / unit)), reset_us, recent, last_us
end
