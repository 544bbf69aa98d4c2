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

-- Skips the entries that have left the window. Returns the units in use, the oldest remaining entry, the
-- numbers of the skipped entries, and whether the oldest remaining entry is in the future.
local function sliding_skip(key, now_us, window_us, used, head, tail)
  local expired, at_us, units, in_future = {}, 0, 0, false
  while head <= tail do
    at_us, units, in_future = sliding_entry(key, head, now_us)
    if at_us + window_us > now_us then break end
    used, expired[#expired + 1], head = max(0, used - units), head, head + 1
  end
  return head <= tail and used or 0, head, expired, head <= tail and in_future
end

-- Before a change: deletes the entries that have left the window. After the clock went back, moves every entry that lies
-- in the future to now.
local function sliding_tidy(key, now_us, head, tail, expired)
  if #expired > 0 then call('HDEL', key, unpack(expired)) end
  if not expired.clock_went_back then return end
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

-- Removes the newest units; returns the newest remaining entry and how many units could not be removed.
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

-- Reads a state without the entries that have left the window, and changes nothing. Returns the units in use (or the
-- error of an unusable key), the last change, the record of recent traffic, the oldest and the newest entry, whether the
-- state exists, and what `sliding_tidy` needs.
local function sliding_read(key, now_us, window_us)
  local fields = pcall('HMGET', key, 'used', 'last', 'n', 'head', 'tail')
  if fields.err then return fields.err end
  local used, last_us = number(fields[1]), number(fields[2])
  local recent, head, tail = fields[3], number(fields[4]), number(fields[5])
  local exists, expired = used and last_us and head and tail, {}
  local length = exists and tail - head + 1
  if exists and not (head % 1 == 0 and length % 1 == 0 and length >= 0 and length <= 4096 and abs(head) < 2^52) then
    exists = nil
  end
  if exists then
    used = max(0, floor(used))
    last_us = floor(last_us * 1000000 + 0.5)
    local in_future
    used, head, expired, in_future = sliding_skip(key, now_us, window_us, used, head, tail)
    expired.clock_went_back = in_future or last_us > now_us
  else
    used, last_us, recent, head, tail = 0, now_us, nil, 1, 0
  end
  return used, last_us, recent, head, tail, exists, expired
end

-- Writes everything but the entries.
local function sliding_write(key, used, last_us, recent, head, tail)
  call('HSET', key, 'used', format('%.0f', used),
    'last', seconds_text(last_us), 'n', recent or '0',
    'head', format('%.0f', head), 'tail', format('%.0f', tail))
end

local function sliding_window(key, now_us, amount, max_wait_us, commit, capacity, _, grain_us, window_us)
  local used, last_us, recent, head, tail, exists, expired = sliding_read(key, now_us, window_us)
  if type(used) == 'string' then return used end

  local wait_us = 0
  if amount > 0 and used > 0 and used + amount > capacity and max_wait_us >= 0 then
    wait_us = sliding_wait(key, now_us, window_us, used + amount - capacity, head, tail)
    -- after the clock went back, write the log at the new time and take nothing
    commit, amount = expired.clock_went_back, 0
  end
  if commit and (amount >= 0 or exists) then
    sliding_tidy(key, now_us, head, tail, expired)
    if amount > 0 then
      tail, used = sliding_append(key, now_us, amount, grain_us, head, tail), used + amount
    elseif amount < 0 then
      local left
      tail, left = sliding_remove(key, now_us, -amount, head, tail)
      used = max(0, used + amount + left)
    end
    recent, last_us = traffic_add(recent, last_us, now_us, amount), now_us
    sliding_write(key, used, last_us, recent, head, tail)
    expire(key, window_us)
  end
  local reset_us = 0
  if head <= tail then reset_us = sliding_entry(key, tail, now_us) + window_us - now_us end
  return wait_us, max(0, capacity - used), reset_us, recent, last_us, used
end
