-- Reads a page of the records whose keys match a pattern.
--
-- KEYS  none: SCAN finds them
-- ARGV  1: now in µs, not used; 2: the pattern; 3: the cursor, 0 to start
-- reply {next cursor ('0' at the end), key, value, key, value, ...}; keys that are not records are left out

local page = redis.call('SCAN', ARGV[3], 'MATCH', ARGV[2], 'COUNT', 500)
local reply = {page[1]}
if #page[2] > 0 then
  local values = redis.call('MGET', unpack(page[2]))
  for i, key in ipairs(page[2]) do
    if values[i] then
      reply[#reply + 1] = key
      reply[#reply + 1] = values[i]
    end
  end
end
return reply
