-- Adds a change to the log of a cache. Twin of changes.py.
--
-- KEYS  1: the log (a string: the number of the latest change, a space, the changes end to end, newest last)
-- ARGV  1: now in µs, or 0 for the server's clock; 2: what changed, 16 characters;
--       3: how many characters of changes the log holds; 4: its life in milliseconds
-- reply {the number of the change}

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

local held = tonumber(ARGV[3])
local number, changes = string.match(redis.call('GET', KEYS[1]) or '', '^(%d+) ([0-9a-f]+)$')
-- What anybody else may have written is no log: a new one begins, and whoever looks finds a gap.
if not number or #number > 16 or #changes % #ARGV[2] ~= 0 or #changes > held then
  number, changes = now_us, ''
end
number = tonumber(number) + 1
changes = string.sub(changes .. ARGV[2], -held)
redis.call('SET', KEYS[1], string.format('%.0f', number) .. ' ' .. changes, 'PX', ARGV[4])
return {number}
