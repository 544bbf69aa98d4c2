-- Hands out permits for calls in flight, each with an owner and a deadline. Twin of permits.py.
--
-- KEYS  for each operation: a sorted set of permits (`id owner`) by their deadline in µs
-- ARGV  1: now in µs, or 0 for the server's clock;
--       then for each operation: take, give or renew; the permit (to give: one or more, a line each); how many there
--       are; how long one holds in µs
-- reply for each operation: 1 if it was done or 0; for a take that was refused the µs until the first deadline,
--       else 0. An error in place of the first when the key could not be used

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = string.format('%.0f', now_us)

-- Strike the permits whose time is over; one that ends later than any can (a clock was set back) ends in time.
local function swept(key, hold_us)
  local struck = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(struck) == 'table' then return struck.err end
  local latest = string.format('%.0f', now_us + hold_us)
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
    redis.call('ZADD', key, latest, permit)
  end
end

local function held(key, permit, hold_us)
  redis.call('ZADD', key, string.format('%.0f', now_us + hold_us), permit)
  redis.call('PEXPIRE', key, string.format('%.0f', math.ceil(hold_us / 1000))) -- nobody's deadline is later
  return 1, 0
end

local function done(key, verb, permit, most, hold_us)
  local trouble = swept(key, hold_us)
  if trouble then return trouble, 0 end
  if verb == 'give' then
    local given = 0
    for one in string.gmatch(permit, '[^\n]+') do given = given + redis.call('ZREM', key, one) end
    return math.min(1, given), 0
  end
  if verb == 'renew' then
    if redis.call('ZREM', key, permit) == 0 then return 0, 0 end
    return held(key, permit, hold_us)
  end
  redis.call('ZREM', key, permit) -- who asks again may have been granted it, and not have heard
  if redis.call('ZCARD', key) < most then return held(key, permit, hold_us) end
  local first = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return 0, math.floor(first[2]) - now_us
end

local reply = {}
for i = 1, #KEYS do
  local a = 4 * i - 2
  reply[2 * i - 1], reply[2 * i] = done(KEYS[i], ARGV[a], ARGV[a + 1], tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]))
end
return reply
