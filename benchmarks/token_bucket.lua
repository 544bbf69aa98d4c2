-- The least that decides a token bucket on the server: what comporta's script is measured against.
-- It checks nothing, knows no changes, no cost, no statistics, and says neither when to come back nor what
-- is left.
--
-- KEYS  1: the bucket
-- ARGV  1: tokens per second, 2: capacity

local rate, capacity = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local found = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens, at = tonumber(found[1] or capacity), tonumber(found[2] or now)

tokens = math.min(capacity, tokens + (now - at) * rate)
if tokens < 1 then return 0 end
redis.call('HSET', KEYS[1], 'tokens', tokens - 1, 'at', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil(1000 * capacity / rate))
return 1
