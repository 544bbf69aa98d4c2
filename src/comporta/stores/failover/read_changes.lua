-- Reads the change log. Lua version of read_changes.py and changes.py. Where the call also registers a
-- worker, read_changes.py puts the text of that operation above this text, as the function `operation`.
--
-- KEYS  the last: the change log (see stores/changes.lua); before it the keys of the operation
-- ARGV  1: now in µs, or 0 for the server's clock; the last: the version that the worker knows; before it the arguments
--       of the operation
-- reply {reply of the operation or {}, version, 1, or 0 if the log does not go back to the known version, then names
--       and versions in turns}

local log, known = table.remove(KEYS), table.remove(ARGV)
local reply = {operation and operation() or {}, known, 1}

local rows = redis.call('ZRANGEBYSCORE', log, known, '+inf', 'WITHSCORES')
if #rows == 2 and rows[2] == known then return reply end

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = string.format('%.0f', now_us)
if redis.call('ZADD', log, 'NX', now, '') == 1 then -- there was no log
  redis.call('PEXPIRE', log, '86400000')
  reply[2], reply[3] = now, 0
  return reply
end

local first = redis.call('ZRANGEBYSCORE', log, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if #rows == 0 then -- the server's clock was set back, or it restarted with an older state
  rows = redis.call('ZRANGEBYSCORE', log, '-inf', '+inf', 'WITHSCORES')
  reply[3] = 0
end
reply[2] = rows[#rows]
if tonumber(first[2]) > tonumber(known) then reply[3] = 0 end
if reply[3] == 0 then return reply end
for i = 1, #rows, 2 do
  if rows[i + 1] ~= known then
    reply[#reply + 1], reply[#reply + 2] = rows[i], rows[i + 1]
  end
end
return reply
