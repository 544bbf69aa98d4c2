-- Leases from a token bucket. Lua version of `LeasedTokenBucketStrategy.grant_lease` and `return_lease`.
-- The id of a lease is the number of the time slice in which it was granted; a slice is `window_us` long.

-- The ledger as of now: the number of this slice, the units leased in it, and those leased in the slice before.
local function read_ledger(key)
  local slice = floor(now_us / window_us)
  local number, current, before = match(call('HGET', key, 'o') or '', '^(%d+):(%d+):(%d+)$')
  number = tonumber(number)
  if number == slice then return slice, tonumber(current), tonumber(before) end
  return slice, 0, number == slice - 1 and tonumber(current) or 0
end

local function write_ledger(key, slice, current, before)
  call('HSET', key, 'o', format('%.0f:%.0f:%.0f', slice, current, before))
end

-- Removes a lease from the ledger; returns how many of its units the ledger held, or nil if the lease has expired.
local function remove_lease(key, lease_id, lent)
  local slice, current, before = read_ledger(key)
  if lease_id ~= slice and lease_id ~= slice - 1 then return nil end
  apply(key, 0, true) -- first refill the bucket by the ledger as it was until now
  local removed = min(lent, lease_id == slice and current or before)
  if lease_id == slice then current = current - removed else before = before - removed end
  write_ledger(key, slice, current, before)
  return removed
end

local function grant_lease(key, amount)
  local slice, current, before = read_ledger(key)
  if amount > 0 then write_ledger(key, slice, current + amount, before) end
  return window_us, slice
end

local function return_lease(key, lease_id, lent, unused)
  local removed = remove_lease(key, lease_id, lent)
  unused = removed and max(0, unused - (lent - removed)) or 0
  if unused > 0 then apply(key, -unused, true) end
end
