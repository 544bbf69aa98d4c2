-- What every strategy uses. Functions are local, because looking one up by name costs as much as calling it.

local call, pcall = redis.call, redis.pcall
local floor, ceil, min, max, abs = math.floor, math.ceil, math.min, math.max, math.abs
local format, match, tonumber, type = string.format, string.match, tonumber, type

local SECOND_US = 1000000

-- The time in µs: what we are told, or where that is 0 the server's.
local function moment(told)
  if told ~= '0' then return tonumber(told) end
  local time = call('TIME')
  return time[1] * SECOND_US + time[2]
end

-- A stored value as a number; nil for what cannot be one (nan is no number: it is not equal to itself).
local function number(text)
  local value = text and tonumber(text)
  if value and value == value and abs(value) < 1e18 then return value end
  return nil
end

-- A number of tokens as text: as few digits as give the same level again (see `unit` in bucket.py).
local function tokens_text(level, unit)
  return format(abs(level) < 1e14 and '%.14g' or '%.17g', level / unit)
end

-- An instant as text: Unix seconds.
local function seconds_text(us)
  return format('%.6f', us / 1000000)
end

-- The numbers of a limit as an operator may have changed it (see rule.py), and how far below its capacity as it
-- was configured that is; what makes no sense is no change. A fourth number of 0 leaves that one as it is.
local function in_force(key, capacity, per_us, unit, window_us)
  local change = pcall('GET', key)
  if type(change) == 'string' then
    local c, p, u, w = match(change, '^([1-9]%d*) (%d+) (%d+) (%d+)')
    if c and (p ~= '0' and u ~= '0' or w ~= '0') then
      if w ~= '0' then window_us = tonumber(w) end
      return tonumber(c), tonumber(p), tonumber(u), window_us, max(0, capacity - c)
    end
  end
  return capacity, per_us, unit, window_us, 0
end

-- Let a state live as long as it means something, and a minute at least, since it counts the last minute.
local function expire(key, microseconds)
  local ms = ceil(microseconds / 1000)
  call('PEXPIRE', key, ms > 60000 and format('%.0f', ms) or '60000')
end
