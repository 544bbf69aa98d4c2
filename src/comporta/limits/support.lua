-- What every strategy uses.

-- A stored value as a number; nil for what cannot be one (nan is no number: it is not equal to itself).
local function number(text)
  local value = tonumber(text or nil)
  if value and value == value and math.abs(value) < 1e18 then return value end
  return nil
end

-- Let a state live as long as it means something, and a minute at least, since it counts the last minute.
local function expire(key, microseconds)
  redis.call('PEXPIRE', key, string.format('%.0f', math.max(60000, math.ceil(microseconds / 1000))))
end
