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

-- Whether numbers can be those of a limit (see rule.py).
local function sensible(c, p, u, w)
  c, p, u, w = tonumber(c), tonumber(p), tonumber(u), tonumber(w)
  if max(c, p, u, w) > 2^53 or w > 1e14 then return false end
  if p > 0 and u > 0 then return c > 0 and c * u <= 2^53 end
  return c > 0 and w > 0
end

-- Whether numbers can be in force where others are configured (see suits in rule.py).
local function suits(p, u, w, per_us, unit)
  p, u, w = tonumber(p), tonumber(u), tonumber(w)
  if per_us > 0 then return p > 0 and u > 0 end
  return p == 0 and w > 0 and (u > 0 or unit == 0)
end

-- The numbers of a limit that are in force by the record of it (see in_force.py), how far below its capacity as it
-- was configured that is, for how long it is paused, and its capacity if it were not degraded; what makes no sense
-- is no change. A fourth number of 0 leaves that one as it is.
local function in_force(key, now_us, capacity, per_us, unit, window_us)
  local change = pcall('GET', key)
  if type(change) ~= 'string' then return capacity, per_us, unit, window_us, 0, 0, capacity end
  local c, p, u, w, rest = match(change, '^([1-9]%d*) (%d+) (%d+) (%d+)(.*)$')
  if not c or not sensible(c, p, u, w) then
    return capacity, per_us, unit, window_us, 0, 0, capacity
  end
  local said, pause_us, original, suited = match(rest, '^ %[(.-)%]'), 0, c, suits(p, u, w, per_us, unit)
  if said then
    local share, bc, bp, bu, bw, ends = match(said,
      'degraded to (%d+) of ([1-9]%d*) (%d+) (%d+) (%d+) ends (%d+) dropped %d+ climbed %d+')
    if share and share + 0 >= 1000000 then share, bc = nil, nil end
    local until_us, length_us = match(said, 'paused until (%d+) for (%d+)')
    if bc and not sensible(bc, bp, bu, bw) then
      return capacity, per_us, unit, window_us, 0, 0, capacity
    end
    if until_us then
      length_us = min(tonumber(length_us), 86400000000)
      pause_us = until_us - now_us
      pause_us = pause_us <= length_us + 60000000 and max(0, min(pause_us, length_us)) or 0
    end
    if bc then suited = suited and suits(bp, bu, bw, per_us, unit) end
    if share and now_us < ends + 0 then
      original = bc
    elseif string.find(said, 'not set by hand', 1, true) then
      return capacity, per_us, unit, window_us, 0, pause_us, capacity
    elseif bc then
      c, p, u, w, original = bc, bp, bu, bw, bc
    end
  end
  if not suited then return capacity, per_us, unit, window_us, 0, pause_us, capacity end
  if w + 0 ~= 0 then window_us = tonumber(w) end
  return tonumber(c), tonumber(p), tonumber(u), window_us, max(0, capacity - c), pause_us, tonumber(original)
end

-- Let a state live as long as it means something, and a minute at least, since it counts the last minute.
local function expire(key, microseconds)
  local ms = ceil(microseconds / 1000)
  call('PEXPIRE', key, ms > 60000 and format('%.0f', ms) or '60000')
end
