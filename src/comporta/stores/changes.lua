-- Begins a script that may record changes in the change log. Lua version of changes.py.
--
-- KEYS  the last: the change log, a sorted set of names by the version of their last change; the member '' has the
--       version since which the log is complete. This text removes the key from KEYS.

local change_log = table.remove(KEYS)

-- Record that `name` changed. A log that cannot be used is left alone: workers then read everything themselves.
local function note_change(name, now_us)
  local CHANGES_MAX, DROPPED, TTL_MS = 1000, 500, '86400000'
  now_us = tonumber(now_us)
  if now_us == 0 then
    local time = redis.call('TIME')
    now_us = time[1] * 1000000 + time[2]
  end
  local now = string.format('%.0f', now_us)
  if type(redis.pcall('ZADD', change_log, 'NX', now, '')) ~= 'number' then return end
  local later = redis.call('ZRANGEBYSCORE', change_log, now, '+inf', 'WITHSCORES')
  local version = #later > 0 and tonumber(later[#later]) + 1 or now_us
  redis.call('ZADD', change_log, string.format('%.0f', version), name)
  if redis.call('ZCARD', change_log) > CHANGES_MAX then
    local oldest = redis.call('ZRANGEBYSCORE', change_log, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, DROPPED)
    redis.call('ZREMRANGEBYSCORE', change_log, '-inf', oldest[#oldest])
    redis.call('ZADD', change_log, oldest[#oldest], '')
  end
  redis.call('PEXPIRE', change_log, TTL_MS)
end
