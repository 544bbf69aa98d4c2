-- Updates the registry of live workers and the barrier at which they rejoin. Lua version of
-- worker_registry.py and barrier.py.
--
-- KEYS  1: the registry, a sorted set: each worker by the time of its last heartbeat in µs; not for rejoin
--       the last, for beat and rejoin: the barrier, a hash: epoch, moment (µs), done (1 or 0), expected, present and
--       again (how many workers), asked (µs, when a member last asked), and a field for each worker that is present:
--       1, or 2 if it has come again since all are there
-- ARGV  1: now in µs, or 0 for the server's clock
--       2: beat, leave, list or rejoin; 3: the worker; 4: after how many µs without a heartbeat a worker is dead
--       for beat, 5: the epoch that the worker confirms, or -1; 6: how many µs ahead the moment is once all are members
--       for rejoin, 4: how many µs a new barrier lasts; 5: the epoch that the worker knew when it lost the store, or
--       -1; 6: as for beat; 7: how many workers it knows of; 8: for how many ms a barrier is remembered;
--       9: after how many µs without a member's request it counts as interrupted; 10: how many µs after the
--       moment a worker is asked to come again; 11: how many µs after the moment one that comes late rejoins
--       at once; 12: the epoch that the worker knew when it last used the store, or -1; 13: the epoch of the
--       barrier at which it waits, or -1
-- reply {live workers, epoch, 1 if its barrier is running} for beat; {live workers} for leave;
--       {worker, age in µs, ...} for list; {epoch, µs left} for rejoin

local key, command, worker, dead_us = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now, dead = string.format('%.0f', now_us), string.format('%.0f', now_us - dead_us)

local function read_barrier(barrier)
  local fields = redis.call('HMGET', barrier, 'epoch', 'moment', 'done', 'expected', 'present', 'again', 'asked')
  return tonumber(fields[1] or 0), tonumber(fields[2] or 0), fields[3] == '1',
    tonumber(fields[4] or 0), tonumber(fields[5] or 0), tonumber(fields[6] or 0), tonumber(fields[7] or 0)
end

-- Adds the worker to the barrier and returns its moment after that.
local function add_member(barrier, moment, expected, present, again, waits, uses_store)
  local before = redis.call('HGET', barrier, worker)
  if not before then present = present + 1 end
  local comes_again = uses_store or (waits and present >= expected)
  if comes_again and before ~= '2' then again = again + 1 end
  redis.call('HSET', barrier, worker, (comes_again or before == '2') and 2 or 1)
  if expected <= 1 then
    moment = math.min(moment, now_us)
  elseif again >= expected then
    moment = math.min(moment, now_us + tonumber(ARGV[6]))
  end
  redis.call('HSET', barrier, 'moment', string.format('%.0f', moment), 'present', present, 'again', again)
  return moment
end

if command == 'rejoin' then
  local barrier_us, lost_epoch, lead_us, workers = dead_us, tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
  local interrupted_us, grace_us, late_us = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
  local used_epoch, waiting_epoch = tonumber(ARGV[12]), tonumber(ARGV[13])
  local epoch, moment, done, expected, present, again, asked = read_barrier(key)
  local running = epoch > 0 and not done
  local past_us = now_us - moment
  if done and past_us >= 0 and past_us < late_us and used_epoch ~= -1 and epoch > used_epoch then
    return {epoch, 0} -- the others have rejoined: this one is the last
  end
  if running and past_us >= 0 and past_us < grace_us then
    return {epoch, lead_us + math.floor(grace_us / 2)} -- it asks again before it rejoins
  end
  local interrupted = math.min(now_us, moment - lead_us) - asked > interrupted_us -- members stop asking there
  local ending = epoch == lost_epoch and -past_us < lead_us
  if not running or past_us >= 0 or interrupted or not (epoch > lost_epoch or ending) then
    epoch, moment, asked = math.max(epoch, lost_epoch) + 1, now_us + barrier_us, now_us
    expected, present, again = 0, 0, 0
    redis.call('DEL', key)
  end
  moment = math.min(moment, now_us + barrier_us) -- the clock was set back
  expected = math.max(expected, workers)
  local waits = waiting_epoch == epoch
  if waits then asked = now_us end
  redis.call('HSET', key, 'epoch', string.format('%.0f', epoch), 'moment', string.format('%.0f', moment),
    'done', 0, 'expected', string.format('%.0f', expected), 'asked', string.format('%.0f', asked))
  moment = add_member(key, moment, expected, present, again, waits, false)
  redis.call('PEXPIRE', key, ARGV[8])
  return {epoch, moment - now_us}
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
local live = redis.call('ZCARD', key)
if command == 'leave' then return {live} end

local epoch, moment, done, expected, present, again = read_barrier(KEYS[2])
if epoch > 0 and not done and tonumber(ARGV[5]) == epoch then
  if now_us >= moment then
    done = true
    redis.call('HSET', KEYS[2], 'done', 1)
  else
    add_member(KEYS[2], moment, expected, present, again, true, true)
  end
end
return {live, epoch, epoch > 0 and not done and 1 or 0}
