-- Sliding window. Lua version of `SlidingWindowStrategy.step` (sliding_window.py).
-- State: HASH {used: units in the log, last: Unix seconds, n: see recent_traffic.lua, head, tail:
-- numbers of the oldest and the newest entry, and for each entry <number>: "<µs>:<units>"}.
-- Size of a key: about 200 bytes and 25 for each entry, or 70 where the hash is large. The argument `grain_us` (the
-- strategy's `unit`) bounds the number of entries.

-- Entry i: the time of its last grant, at most now, its units, and whether the recorded time is in the future.
local function sliding_entry(key, i, now_us)
  local at_us, units = match(call('HGET', key, i) or '', '^(%d+):(%d+)$')
  at_us = tonumber(at_us) or 0
  return min(at_us, now_us), tonumber(units) or 0, at_us > now_us
end

-- Skips the entries that have left the window, and deletes them unless this is a peek. Returns the units in use, the
-- oldest entry that is left, whether any entry was deleted, and whether the oldest one is in the future.
local function sliding_trim(key, now_us, window_us, used, head, tail, is_peek)
  local expired, at_us, units, in_future = {}, 0, 0, false
  while head <= tail do
    at_us, units, in_future = sliding_entry(key, head, now_us)
    if at_us + window_us > now_us then break end
    used, expired[#expired + 1], head = max(0, used - units), head, head + 1
  end
  local delete = #expired > 0 and not is_peek
  if delete then call('HDEL', key, unpack(expired)) end
  return head <= tail and used or 0, head, delete, head <= tail and in_future
end

-- After the clock went back, moves every entry that lies in the future to now.
local function sliding_clamp(key, now_us, head, tail)
  for i = head, tail do
    local at_us, units = sliding_entry(key, i, now_us)
    call('HSET', key, i, format('%.0f:%.0f', at_us, units))
  end
end

-- Adds `amount` to the newest entry if it belongs to the same grain of time, or appends an entry; returns the tail.
local function sliding_append(key, now_us, amount, grain_us, head, tail)
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

-- Removes the newest units; returns the newest entry that is left and how many units could not be removed.
local function sliding_remove(key, now_us, left, head, tail)
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

-- How long until `missing` units have left the window, or all of them if there are fewer.
local function sliding_wait(key, now_us, window_us, missing, head, tail)
  local wait_us = 0
  for i = head, tail do
    local at_us, units = sliding_entry(key, i, now_us)
    wait_us, missing = at_us + window_us - now_us, missing - units
    if missing <= 0 then break end
  end
  return wait_us
end

-- Reads a state without the entries that have left the window. Returns the units in use (or the error of an unusable
-- key), the last change, the record of recent traffic, the oldest and the newest entry, whether the state exists, and
-- whether entries were deleted.
local function sliding_read(key, now_us, window_us, is_peek)
  local fields = pcall('HMGET', key, 'used', 'last', 'n', 'head', 'tail')
  if fields.err then return fields.err end
  local used, last_us = number(fields[1]), number(fields[2])
  local recent, head, tail = fields[3], number(fields[4]), number(fields[5])
  local exists, trimmed = used and last_us and head and tail, false
  local length = exists and tail - head + 1
  if exists and not (head % 1 == 0 and length % 1 == 0 and length >= 0 and length <= 4096 and abs(head) < 2^52) then
    exists = nil
  end
  if exists then
    used = max(0, floor(used))
    last_us = floor(last_us * 1000000 + 0.5)
    local in_future
    used, head, trimmed, in_future = sliding_trim(key, now_us, window_us, used, head, tail, is_peek)
    if (in_future or last_us > now_us) and not is_peek then sliding_clamp(key, now_us, head, tail) end
  else
    used, last_us, recent, head, tail = 0, now_us, nil, 1, 0
  end
  return used, last_us, recent, head, tail, exists, trimmed
end

-- Writes everything but the entries.
local function sliding_write(key, used, last_us, recent, head, tail)
  call('HSET', key, 'used', format('%.0f', used),
    'last', seconds_text(last_us), 'n', recent or '0',
    'head', format('%.0f', head), 'tail', format('%.0f', tail))
end

local function sliding_window(key, now_us, amount, max_wait_us, commit, capacity, _, grain_us, window_us)
  local is_peek = amount == 0
  local used, last_us, recent, head, tail, exists, trimmed = sliding_read(key, now_us, window_us, is_peek)
  if type(used) == 'string' then return used end

  local wait_us = 0
  if amount > 0 and used > 0 and used + amount > capacity and max_wait_us >= 0 then
    wait_us = sliding_wait(key, now_us, window_us, used + amount - capacity, head, tail)
    commit, amount = false, 0
  end
  commit = commit and (amount >= 0 or exists)
  if commit and amount > 0 then
    tail, used = sliding_append(key, now_us, amount, grain_us, head, tail), used + amount
  elseif commit and amount < 0 then
    local left
    tail, left = sliding_remove(key, now_us, -amount, head, tail)
    used = max(0, used + amount + left)
  end
  if commit or trimmed or last_us > now_us and not is_peek then
    if commit or last_us > now_us then
      recent, last_us = traffic_add(recent, last_us, now_us, commit and amount or 0), now_us
    end
    sliding_write(key, used, last_us, recent, head, tail)
    if commit then expire(key, window_us) end
  end
  local reset_us = 0
  if head <= tail then reset_us = sliding_entry(key, tail, now_us) + window_us - now_us end
  return wait_us, max(0, capacity - used), reset_us, recent, last_us, used
end
