-- Leases from a sliding window. Lua version of `SlidingWindowStrategy.grant_lease` and `return_lease`.
-- The id of a lease is the time at which it was granted.

ttl_us = min(ttl_us, floor(window_us / 202)) -- see `_lease_us_max` in sliding_window.py

local function grant_lease(key, amount)
  return ttl_us, now_us
end

local function return_lease(key, lease_id, lent, unused)
  if now_us < lease_id or now_us - lease_id > ttl_us then return end
  if unused > 0 then apply(key, -unused, true) end
end
