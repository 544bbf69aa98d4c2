-- What every strategy uses. Functions are local, because looking one up by name costs as much as calling it.

local call, pcall = redis.call, redis.pcall
local floor, ceil, min, max, abs = math.floor, math.ceil, math.min, math.max, math.abs
local format, match, tonumber, type = string.format, string.match, tonumber, type

local SECOND_US = 1000000

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

-- Let a state live as long as it means something, and a minute at least, since it counts the last minute.
local function expire(key, microseconds)
  local ms = ceil(microseconds / 1000)
  call('PEXPIRE', key, ms > 60000 and format('%.0f', ms) or '60000')
end
