-- Lists the permits that are out, changing nothing. Twin of `Holders` in permits.py.
--
-- KEYS  1: a sorted set of permits (`id owner`) by their deadline in µs
-- ARGV  1: now in µs, or 0 for the server's clock; 2: how long one holds in µs
-- reply {permit, µs left, ...}, the first to end first

local now_us, hold_us = tonumber(ARGV[1]), tonumber(ARGV[2])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now_us), '+inf', 'WITHSCORES')
for i = 2, #found, 2 do found[i] = string.format('%.0f', math.min(hold_us, found[i] - now_us)) end
return found
