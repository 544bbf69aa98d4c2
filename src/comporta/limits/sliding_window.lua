-- Sliding window. Twin of sliding_window.py; the frame that calls it is limit.lua.
-- State: HASH {used: units in the log, last: Unix seconds, n: see traffic.lua, head, tail:
-- numbers of the oldest and the newest entry, and for each entry <number>: "<µs>:<units>"}.
-- What a key costs: about 200 bytes and 25 for each entry, 70 where the hash is large; entries are
-- limited by the rule's grain (the argument `unit`).

-- What entry i holds: the time of its last grant, never later than now, its units, and whether it lay ahead.
local function sliding_entry(key, i, now_us)
  local at_us, units = match(call('HGET', key, i) or '', '^(%d+):(%d+)$')
  at_us = tonumber(at_us) or 0
  return min(at_us, now_us), tonumber(units) or 0, at_us > now_us
end

-- Pass over the entries that have left the window, and drop them unless this is only a look; returns what is
-- used, the oldest left, whether any was dropped, and whether the oldest left lies ahead of now.
local function sliding_trimmed(key, now_us, window_us, used, head, tail, look)
  local gone, at_us, units, ahead = {}, 0, 0, false
  while head <= tail do
    at_us, units, ahead = sliding_entry(key, head, now_us)
    if at_us + window_us > now_us then break end
    used, gone[#gone + 1], head = max(0, used - units), head, head + 1
  end
  local drop = #gone > 0 and not look
  if drop then call('HDEL', key, unpack(gone)) end
  return head <= tail and used or 0, head, drop, head <= tail and ahead
end

-- Put every entry that lies ahead of a clock that went back to now.
local function sliding_anchored(key, now_us, head, tail)
  for i = head, tail do
    local at_us, units = sliding_entry(key, i, now_us)
    call('HSET', key, i, format('%.0f:%.0f', at_us, units))
  end
end

local function sliding_entered(key, now_us, amount, grain_us, head, tail)
  local at_us, units
  if head <= tail then at_us, units = sliding_entry(key, tail, now_us) end
  if at_us and floor(at_us / grain_us) == floor(now_us / grain_us) then
    amount = amount + units
  else
    tail = tail + 1
  end
  call('HSET', key, tail, format('%.0f:%.0f', now_us, amount))
  return tail
end

-- Strike what was taken last; returns the newest entry left and how much could not be struck.
local function sliding_struck(key, now_us, left, head, tail)
  while left > 0 and head <= tail do
    local at_us, units = sliding_entry(key, tail, now_us)
    if units > left then
      call('HSET', key, tail, format('%.0f:%.0f', at_us, units - left))
      return tail, 0
    end
    call('HDEL', key, tail)
    tail, left = tail - 1, left - units
  end
  return tail, left
end

-- How long until `missing` units have left the window, or all of them if that is less.
local function sliding_wait(key, now_us, window_us, missing, head, tail)
  local wait_us = 0
  for i = head, tail do
    local at_us, units = sliding_entry(key, i, now_us)
    wait_us, missing = at_us + window_us - now_us, missing - units
    if missing <= 0 then break end
  end
  return wait_us
end

local function sliding_window(key, now_us, amount, patience_us, commit, capacity, _, grain_us, window_us)
  local found = pcall('HMGET', key, 'used', 'last', 'n', 'head', 'tail')
  if found.err then return found.err end
  local used, last_us = number(found[1]), number(found[2])
  local recent, head, tail = found[3], number(found[4]), number(found[5])
  local known, moved, look = used and last_us and head and tail, false, amount == 0
  local length = known and tail - head + 1
  if known and not (head % 1 == 0 and length % 1 == 0 and length >= 0 and length <= 4096 and abs(head) < 2^52) then
    known = nil
  end
  if known then
    used = max(0, floor(used))
    last_us = floor(last_us * 1000000 + 0.5)
    local ahead
    used, head, moved, ahead = sliding_trimmed(key, now_us, window_us, used, head, tail, look)
    if (ahead or last_us > now_us) and not look then sliding_anchored(key, now_us, head, tail) end
  else
    used, last_us, recent, head, tail = 0, now_us, nil, 1, 0
  end

  local wait_us = 0
  if amount > 0 and used > 0 and used + amount > capacity and patience_us >= 0 then
    wait_us = sliding_wait(key, now_us, window_us, used + amount - capacity, head, tail)
    commit, amount = false, 0
  end
  commit = commit and (amount >= 0 or known)
  if commit and amount > 0 then
    tail, used = sliding_entered(key, now_us, amount, grain_us, head, tail), used + amount
  elseif commit and amount < 0 then
    local left
    tail, left = sliding_struck(key, now_us, -amount, head, tail)
    used = max(0, used + amount + left)
  end
  if commit or moved or last_us > now_us and not look then
    if commit or last_us > now_us then
      recent, last_us = traffic_added(recent, last_us, now_us, amount), now_us
    end
    call('HSET', key, 'used', format('%.0f', used),
      'last', seconds_text(last_us), 'n', recent or '0',
      'head', format('%.0f', head), 'tail', format('%.0f', tail))
    if commit then expire(key, window_us) end
  end
  local reset_us = 0
  if head <= tail then reset_us = sliding_entry(key, tail, now_us) + window_us - now_us end
  return wait_us, max(0, capacity - used), reset_us, recent, last_us
end
