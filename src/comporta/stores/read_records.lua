-- Reads small records. Lua version of ReadRecord in records.py.
--
-- KEYS  the records (strings)
-- ARGV  1: now in µs, not used: the server expires records
-- reply for each record its value or nil, or {error text} if the key is unusable

local reply = {}
for i, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  reply[i] = type(value) == 'table' and {value.err} or value
end
return reply
