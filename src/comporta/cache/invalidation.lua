-- Appends an invalidation to the log of a cache. Lua version of invalidation.py.
--
-- KEYS  1: the log (a string: the number of the latest invalidation, a space, all digests, the newest last)
-- ARGV  1: now in µs, or 0 for the server's clock; 2: the digest of the changed key, 16 characters;
--       3: how many characters of digests the log holds; 4: its TTL in milliseconds
-- reply {the number of the invalidation}

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local length_max = tonumber(ARGV[3])
local number, digests = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) ([0-9a-f]+)$')
-- A malformed log, which another program may have written, is replaced; readers then see a gap.
if not number or #number > 16 or #digests % #ARGV[2] ~= 0 or #digests > length_max then
  number, digests = now_us, ''
end
number = tonumber(number) + 1
digests = string.sub(digests .. ARGV[2], -length_max)
redis.call('SET', KEYS[1], string.format('%.0f', number) .. ' ' .. digests, 'PX', ARGV[4])
return {number}
