-- Lists the permits in use and changes nothing. Lua version of `ListHolders` in operation.py.
--
-- KEYS  1: a sorted set of permits (`id owner`) by their deadline in µs
-- ARGV  1: now in µs, or 0 for the server's clock; 2: the time to live of a permit in µs
-- reply {permit, µs left, ...}, the next one to expire first

local now_us, ttl_us = tonumber(ARGV[1]), tonumber(ARGV[2])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local permits = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now_us), '+inf', 'WITHSCORES')
for i = 2, #permits, 2 do permits[i] = string.format('%.0f', math.min(ttl_us, permits[i] - now_us)) end
return permits
