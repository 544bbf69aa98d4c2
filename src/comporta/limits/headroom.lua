-- Headroom of priority classes. Lua version of `Headroom.floor` (priority.py) and of `available_capacity` of the
-- strategies.

-- The capacity without the leased tokens of a token bucket. A bucket with both a rate and a slice has a
-- ledger.
local function available_capacity(key, now_us, capacity, per_us, slice_us)
  if per_us == 0 or slice_us == 0 then return capacity end
  local ledger = pcall('HGET', key, 'o')
  local slice, current, before = match(type(ledger) == 'string' and ledger or '', '^(%d+):(%d+):(%d+)$')
  local age = slice and floor(now_us / slice_us) - slice
  if age == 0 then return max(0, capacity - current - before) end
  return age == 1 and max(0, capacity - current) or capacity
end

-- How many units must be left after `amount` is taken; `original` is the configured capacity.
local function headroom_floor(key, now_us, amount, headroom, original, capacity, per_us, slice_us)
  if headroom == 0 or amount <= 0 then return 0 end
  local available = available_capacity(key, now_us, capacity, per_us, slice_us)
  return max(0, min(floor(headroom * available / original), available - amount))
end
