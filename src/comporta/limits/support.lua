-- Helpers that every script of the limits package starts with.
-- Functions are local because looking up a global costs as much as calling it.

local call, pcall = redis.call, redis.pcall
local floor, ceil, min, max, abs = math.floor, math.ceil, math.min, math.max, math.abs
local format, match, tonumber, type = string.format, string.match, tonumber, type

local SECOND_US = 1000000

-- The time in µs: the argument, or the server's clock if the argument is '0'.
local function time_us(argument)
  if argument ~= '0' then return tonumber(argument) end
  local time = call('TIME')
  return time[1] * SECOND_US + time[2]
end

-- A stored value as a number, or nil if it is not a usable number (nan is not equal to itself).
local function number(text)
  local value = text and tonumber(text)
  if value and value == value and abs(value) < 1e18 then return value end
  return nil
end

-- A level as text, in tokens: as few digits as restore the same level (see `unit` in strategies/bucket.py). With 14
-- digits the error is at most level * 5e-14, so a level below 1e13 is restored by rounding.
local function tokens_text(level, unit)
  return format(abs(level) < 1e13 and '%.14g' or '%.17g', level / unit)
end

-- A timestamp as text: Unix seconds.
local function seconds_text(us)
  return format('%.6f', us / 1000000)
end

-- The functions that check recorded parameters. Few limits have a record, and defining a function costs as much as
-- calling it.
local function params_checks()
  -- Whether the four parameters can belong to a limit (`LimitParams.is_valid`).
  local function are_valid_params(c, p, u, w)
    c, p, u, w = tonumber(c), tonumber(p), tonumber(u), tonumber(w)
    if max(c, p, u, w) > 2^53 or w > 1e14 then return false end
    if p > 0 and u > 0 then return c > 0 and c * u <= 2^53 end
    return c > 0 and w > 0
  end

  -- Whether recorded parameters can replace the configured ones (`LimitParams.is_compatible`).
  local function are_compatible_params(p, u, w, per_us, unit)
    p, u, w = tonumber(p), tonumber(u), tonumber(w)
    if per_us > 0 then return p > 0 and u > 0 end
    return p == 0 and w > 0 and (u > 0 or unit == 0)
  end

  return are_valid_params, are_compatible_params
end

-- The parameters in effect after the override record at `key` (see overrides/record.py). Returns capacity,
-- per_us, unit, window_us, how far the capacity is below the configured one, how long the limit is paused,
-- and its capacity without degradation. An invalid record changes nothing. A recorded window_us of 0 keeps
-- the configured one.
local function effective_params(key, now_us, capacity, per_us, unit, window_us)
  local record = pcall('GET', key)
  if type(record) ~= 'string' then return capacity, per_us, unit, window_us, 0, 0, capacity end
  local are_valid_params, are_compatible_params = params_checks()
  local c, p, u, w, rest = match(record, '^([1-9]%d*) (%d+) (%d+) (%d+)(.*)$')
  if not c or not are_valid_params(c, p, u, w) then
    return capacity, per_us, unit, window_us, 0, 0, capacity
  end
  local details, pause_us, original = match(rest, '^ %[(.-)%]'), 0, c
  local compatible = are_compatible_params(p, u, w, per_us, unit)
  if details then
    local share, bc, bp, bu, bw, ends = match(details,
      'degraded to (%d+) of ([1-9]%d*) (%d+) (%d+) (%d+) ends (%d+) dropped %d+ climbed %d+')
    if share and share + 0 >= 1000000 then share, bc = nil, nil end
    local until_us, length_us = match(details, 'paused until (%d+) for (%d+)')
    if bc and not are_valid_params(bc, bp, bu, bw) then
      return capacity, per_us, unit, window_us, 0, 0, capacity
    end
    if until_us then
      length_us = min(tonumber(length_us), 86400000000)
      pause_us = until_us - now_us
      pause_us = pause_us <= length_us + 60000000 and max(0, min(pause_us, length_us)) or 0
    end
    if bc then compatible = compatible and are_compatible_params(bp, bu, bw, per_us, unit) end
    if share and now_us < ends + 0 then
      original = bc
    elseif string.find(details, 'not set by hand', 1, true) then
      return capacity, per_us, unit, window_us, 0, pause_us, capacity
    elseif bc then
      c, p, u, w, original = bc, bp, bu, bw, bc
    end
  end
  if not compatible then return capacity, per_us, unit, window_us, 0, pause_us, capacity end
  if w + 0 ~= 0 then window_us = tonumber(w) end
  return tonumber(c), tonumber(p), tonumber(u), window_us, max(0, capacity - c), pause_us, tonumber(original)
end

-- Expires a state after `microseconds`, but after at least a minute, because it also counts the last minute.
local function expire(key, microseconds)
  local ms = ceil(microseconds / 1000)
  call('PEXPIRE', key, ms > 60000 and format('%.0f', ms) or '60000')
end
