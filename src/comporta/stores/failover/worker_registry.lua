-- Updates the registry of live workers. Twin of worker_registry.py.
--
-- KEYS  1: the registry, a sorted set: each worker by the time of its last heartbeat in µs;
--          for rejoin a string instead: the moment, in µs, at which the fleet rejoins
-- ARGV  1: now in µs, or 0 for the server's clock
--       2: beat, leave, list or rejoin; 3: the worker; 4: after how many µs without a heartbeat a worker is
--       dead; for rejoin how many µs ahead to set the moment
-- reply {live workers} for beat and leave; {worker, age in µs, ...} for list; {µs left} for rejoin

local key, command, worker, dead_us = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now, dead = string.format('%.0f', now_us), string.format('%.0f', now_us - dead_us)

if command == 'rejoin' then
  local moment = tonumber(redis.call('GET', key) or '')
  if not moment or math.abs(moment - now_us) > dead_us then
    moment = now_us + dead_us
    redis.call('SET', key, string.format('%.0f', moment), 'PX', string.format('%.0f', dead_us / 500))
  end
  return {moment - now_us}
end

if command == 'list' then
  local workers = redis.call('ZRANGEBYSCORE', key, '(' .. dead, '+inf', 'WITHSCORES')
  for i = 2, #workers, 2 do workers[i] = string.format('%.0f', math.max(0, now_us - workers[i])) end
  return workers
end

if command == 'beat' then redis.call('ZADD', key, now, worker) else redis.call('ZREM', key, worker) end
for _, ahead in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. now, '+inf')) do
  redis.call('ZADD', key, now, ahead) -- the server's clock was set back
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', dead)
redis.call('PEXPIRE', key, string.format('%.0f', dead_us / 500)) -- twice as long as a silent worker stays in it
return {redis.call('ZCARD', key)}
