-- Calendar window. Lua version of `CalendarWindowStrategy.step` (calendar_window.py) and of `Schedule` (schedule.py).
-- calendar_window.py puts the schedule above this text: CALENDAR = {time_s, is_month, changes of the zone's offset as
-- pairs of a time and the offset from then on, all in seconds}. The time is the server's.
-- State: HASH {used: units in this window, start: Unix seconds, last: seconds from start to the last change,
-- n: see recent_traffic.lua}.

local DAY_S = 86400

-- The first day of a month (year * 12 + 0 to 11), counted from 1970.
local function calendar_month_day(month)
  local year, number = floor(month / 12), month % 12
  if number < 2 then year = year - 1 end
  number = (number + 10) % 12
  return 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400)
    + floor((153 * number + 2) / 5) - 719468
end

-- When a day or a month begins.
local function calendar_begin(index)
  local day = CALENDAR.is_month and calendar_month_day(index) or index
  local local_s, offset_s = day * DAY_S + CALENDAR.time_s, CALENDAR[2]
  for i = 3, #CALENDAR, 2 do
    if local_s < CALENDAR[i] + max(offset_s, CALENDAR[i + 1]) then break end
    offset_s = CALENDAR[i + 1]
  end
  return local_s - offset_s
end

-- When the window at a moment began and when it ends, in µs.
local function calendar_bounds(at_us)
  local now_s, offset_s = floor(at_us / SECOND_US), CALENDAR[2]
  for i = 3, #CALENDAR, 2 do
    if now_s < CALENDAR[i] then break end
    offset_s = CALENDAR[i + 1]
  end
  local index = floor((now_s + offset_s) / DAY_S)
  if CALENDAR.is_month then index = floor((index + 719468) * 4800 / 146097) + 2 end
  while calendar_begin(index) > now_s do index = index - 1 end
  while calendar_begin(index + 1) <= now_s do index = index + 1 end
  return calendar_begin(index) * SECOND_US, calendar_begin(index + 1) * SECOND_US
end

-- The units used in the current window, its start and its end; see `_current_window`.
local function calendar_current(used, stored_us, now_us)
  local start_us, end_us = calendar_bounds(now_us)
  if not stored_us or stored_us < start_us then return 0, start_us, end_us end
  if stored_us == end_us then start_us, end_us = calendar_bounds(end_us) end
  return used, start_us, end_us
end

local function calendar_window(key, now_us, amount, max_wait_us, commit, capacity)
  local fields = pcall('HMGET', key, 'used', 'start', 'last', 'n')
  if fields.err then return fields.err end
  local used, stored_us, last_us = number(fields[1]), number(fields[2]), number(fields[3])
  local exists, recent = used and stored_us and last_us, fields[4]
  if exists then
    used = max(0, floor(used))
    stored_us = floor(stored_us * 1000000 + 0.5)
    last_us = stored_us + floor(last_us * 1000000 + 0.5)
  else
    used, stored_us, last_us, recent = 0, nil, now_us, nil
  end
  local start_us, end_us
  used, start_us, end_us = calendar_current(used, stored_us, now_us)

  local wait_us = 0
  if amount > 0 and used > 0 and used + amount > capacity and max_wait_us >= 0 then
    wait_us = end_us - now_us
    commit, amount = last_us > now_us, 0 -- after the clock went back, write the state at the new time
  end
  if commit and (amount >= 0 or exists) then
    used = max(0, used + amount)
    recent, last_us = traffic_add(recent, last_us, now_us, amount), now_us
    call('HSET', key, 'used', format('%.0f', used),
      'start', seconds_text(start_us),
      'last', seconds_text(now_us - start_us), 'n', recent)
    expire(key, end_us - now_us)
  end
  return wait_us, max(0, capacity - used), used > 0 and end_us - now_us or 0, recent, last_us, used
end
