-- Ends a script that left its answer in `reply`: adds how many workers are alive, so that each of them hears it
-- with every decision and can take its share of a limit when the server is away.
--
-- KEYS  the last: the sorted set in which workers report (it is kept without those that are gone)
-- reply one more element: the number of workers, 0 where nobody can tell

local workers = redis.pcall('ZCARD', KEYS[#KEYS])
reply[#reply + 1] = type(workers) == 'number' and workers or 0
return reply
