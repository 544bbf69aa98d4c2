-- Fixed window. Lua version of `FixedWindowStrategy.step` (fixed_window.py).
-- State: HASH {used: units in this window, start: Unix seconds, last: seconds from start to the last change,
-- n: see recent_traffic.lua}.

local function fixed_window(key, now_us, amount, max_wait_us, commit, capacity, _, _, window_us)
  local fields = pcall('HMGET', key, 'used', 'start', 'last', 'n')
  if fields.err then return fields.err end
  local used, start_us, last_us = number(fields[1]), number(fields[2]), number(fields[3])
  local exists, recent, clock_went_back = used and start_us and last_us, fields[4], false
  if exists then
    used = max(0, floor(used))
    start_us = floor(start_us * 1000000 + 0.5)
    last_us = start_us + floor(last_us * 1000000 + 0.5)
    if now_us - start_us >= window_us then
      used = 0
      if amount > 0 then start_us = now_us end  -- a release starts no window
    end
    if start_us > now_us then start_us, clock_went_back = now_us, true end
  else
    used, start_us, last_us, recent = 0, now_us, now_us, nil
  end

  local wait_us = 0
  if amount > 0 and used > 0 and used + amount > capacity and max_wait_us >= 0 then
    wait_us = start_us + window_us - now_us
    -- after the clock went back, write the state at the new time and take nothing
    commit, amount = clock_went_back or last_us > now_us, 0
  end
  if commit and (amount >= 0 or exists) then
    used = max(0, used + amount)
    recent, last_us = traffic_add(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'used', format('%.0f', used),
      'start', seconds_text(start_us),
      'last', seconds_text(now_us - start_us), 'n', recent)
    expire(key, window_us)
  end
  local reset_us = used > 0 and start_us + window_us - now_us or 0
  return wait_us, max(0, capacity - used), reset_us, recent, last_us, used
end
