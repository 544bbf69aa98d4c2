-- How many units were granted in the last minute. Lua version of recent_traffic.py.
-- A record is "count,past1,past2,..." in hexadecimal, relative to the time slice of the last grant; empty slices at
-- the end are omitted.

local SLICE_US = 16777216
local MINUTE_US = 60000000

-- The functions that read a whole record: `counts` and `recent`. Most calls need neither, and defining one costs as
-- much as calling it.
local function traffic_functions()
  -- The counts relative to now_us: a list whose first element belongs to the current slice.
  local function counts_at(record, last_us, now_us)
    local slices = floor(now_us / SLICE_US) - floor(last_us / SLICE_US)
    local counts = {}
    if slices < 0 or now_us - last_us >= MINUTE_US then return {0} end
    for _ = 1, slices do counts[#counts + 1] = 0 end
    for n in string.gmatch(record or '', '%x+') do
      if #counts < 5 then counts[#counts + 1] = tonumber(n, 16) end
    end
    if #counts == 0 then counts[1] = 0 end
    return counts
  end

  -- The units granted in the minute before now_us; the oldest slice counts partially.
  local function recent(record, last_us, now_us)
    local counts = counts_at(record, last_us, now_us)
    local oldest_us = MINUTE_US - now_us % SLICE_US
    local whole = floor(oldest_us / SLICE_US)
    local total = counts[1]
    for i = 2, whole + 1 do total = total + (counts[i] or 0) end
    return total + ceil((counts[whole + 2] or 0) * (oldest_us % SLICE_US) / SLICE_US)
  end

  return counts_at, recent
end

-- The record after `amount` more units were granted (below 0: released).
local function traffic_add(record, last_us, now_us, amount)
  if record and floor(now_us / SLICE_US) == floor(last_us / SLICE_US) then
    local count, past = match(record, '^(%x+)(.*)$')
    if count then return format('%x', max(0, tonumber(count, 16) + amount)) .. past end
  end
  local counts = traffic_functions()(record, last_us, now_us)
  counts[1] = max(0, counts[1] + amount)
  while #counts > 1 and counts[#counts] == 0 do counts[#counts] = nil end
  for i, n in ipairs(counts) do counts[i] = format('%x', n) end
  return table.concat(counts, ',')
end
