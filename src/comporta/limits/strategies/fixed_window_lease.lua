-- Leases from a fixed window. Lua version of `FixedWindowStrategy.grant_lease` and `return_lease`.
-- A lease ends at the latest with its window, and its id is the start of the window.

local function window_start_us(key)
  return floor((number(call('HGET', key, 'start')) or -1) * 1000000 + 0.5)
end

local function grant_lease(key, amount)
  local start_us = window_start_us(key)
  return min(ttl_us, start_us + window_us - now_us), start_us
end

local function return_lease(key, lease_id, lent, unused)
  if window_start_us(key) ~= lease_id or now_us < lease_id or now_us - lease_id >= window_us then return end
  if unused > 0 then apply(key, -unused, true) end
end
