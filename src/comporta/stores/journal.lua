-- Appends to and reads the fleet's journal. Lua version of journal.py.
--
-- KEYS  1: the journal, a hash: the latest 200 entries in a ring of fields 0 to 199, and `next`: how many
--          entries there have ever been
-- ARGV  1: now in µs, not used: the server expires the journal
--       2: append or latest; for append from 3 on: the entries; for latest 3: how many
-- reply {number of entries appended} for append; {the newest, the one before, ...} for latest

local entries_max, ttl_ms = 200, 3600000
local key, command = KEYS[1], ARGV[2]
local following = tonumber(redis.call('HGET', key, 'next') or '') or 0
-- not written by this script: at such numbers x - 1 == x, and the loop below would never end
if not (following >= 0 and following <= 2 ^ 52 and following % 1 == 0) then following = 0 end

local function field(number) return string.format('%.0f', number % entries_max) end

if command == 'latest' then
  local names, reply = {}, {}
  for number = following - 1, math.max(0, following - tonumber(ARGV[3])), -1 do
    names[#names + 1] = field(number)
  end
  if #names == 0 then return reply end
  for _, entry in ipairs(redis.call('HMGET', key, unpack(names))) do
    if entry then reply[#reply + 1] = entry end
  end
  return reply
end

for i = 3, #ARGV do redis.call('HSET', key, field(following + i - 3), ARGV[i]) end
redis.call('HSET', key, 'next', string.format('%.0f', following + #ARGV - 2))
redis.call('PEXPIRE', key, ttl_ms)
return {#ARGV - 2}
