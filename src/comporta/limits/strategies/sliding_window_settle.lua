-- Settling what calls of a sliding window cost. Lua version of `SlidingWindowStrategy.settle`.
-- The entry of the call changes, so that its real cost counts from when it was granted.

-- The newest entry that is not in a later grain of time than `granted_us`; head - 1 if there is none.
local function find_entry(key, granted_us, head, tail)
  local low, high, grain = head - 1, tail, floor(granted_us / unit)
  while low < high do
    local middle = ceil((low + high) / 2)
    if floor((sliding_entry(key, middle, now_us)) / unit) <= grain then low = middle else high = middle - 1 end
  end
  return low
end

local function add_units(key, entry, more)
  local at_us, units = sliding_entry(key, entry, now_us)
  call('HSET', key, entry, format('%.0f:%.0f', at_us, units + more))
end

-- Subtracts units from an entry and then from older ones; returns how many could not be subtracted.
local function subtract_units(key, entry, left, head)
  while left > 0 and entry >= head do
    local _, units = sliding_entry(key, entry, now_us)
    local credited = min(left, units)
    add_units(key, entry, -credited)
    left, entry = left - credited, entry - 1
  end
  return left
end

-- Deletes the newest entries without units; returns the newest remaining entry.
local function drop_empty(key, head, tail)
  while head <= tail do
    local _, units = sliding_entry(key, tail, now_us)
    if units > 0 then break end
    call('HDEL', key, tail)
    tail = tail - 1
  end
  return tail
end

local function write(key, used, last_us, recent, head, tail, amount)
  sliding_write(key, used + amount, now_us, traffic_add(recent, last_us, now_us, amount), head, tail)
  expire(key, window_us)
end

-- Whether an entry or an older one has units.
local function has_units(key, entry, head)
  for i = head, entry do
    local _, units = sliding_entry(key, i, now_us)
    if units > 0 then return true end
  end
  return false
end

-- A credit that finds nothing changes nothing, not even the entries that lie in the future after the clock went back.
local function credit(key, amount, age_us)
  local used, last_us, recent, head, tail, exists, expired = sliding_read(key, now_us, window_us)
  local entry = exists and find_entry(key, now_us - age_us, head, tail)
  if not exists or not has_units(key, entry, head) then return false end
  sliding_tidy(key, now_us, head, tail, expired)
  local left = subtract_units(key, entry, amount, head)
  write(key, used, last_us, recent, head, drop_empty(key, head, tail), left - amount)
  return true
end

local function debit(key, amount, age_us)
  local used, last_us, recent, head, tail, _, expired = sliding_read(key, now_us, window_us)
  sliding_tidy(key, now_us, head, tail, expired)
  if head > tail or age_us >= window_us then
    tail = sliding_append(key, now_us, amount, unit, head, tail)
  else
    add_units(key, max(head, find_entry(key, now_us - age_us, head, tail)), amount)
  end
  write(key, used, last_us, recent, head, tail, amount)
  return true
end
