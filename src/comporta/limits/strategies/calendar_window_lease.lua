-- Leases from a calendar window. Lua version of `CalendarWindowStrategy.grant_lease` and `return_lease`.
-- A lease ends at the latest with its window, and its id is the start of the window.

local function window_start_us(key)
  return floor((number(call('HGET', key, 'start')) or -1) * 1000000 + 0.5)
end

local function grant_lease(key, amount)
  local start_us = window_start_us(key)
  local _, end_us = calendar_bounds(start_us)
  return min(ttl_us, end_us - now_us), start_us
end

local function return_lease(key, lease_id, lent, unused)
  local start_us = window_start_us(key)
  local _, current_us = calendar_current(0, start_us, now_us)
  if start_us ~= lease_id or current_us ~= lease_id then return end
  if unused > 0 then apply(key, -unused, true) end
end
