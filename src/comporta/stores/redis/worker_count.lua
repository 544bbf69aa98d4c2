-- Ends a script that left its answer in `reply`: appends the worker count, so that every worker learns it with
-- every decision and knows its share of a limit when an outage begins.
--
-- KEYS  the last: the registry of live workers, a sorted set from which heartbeats remove dead ones
-- reply one more element: the worker count, 0 if the registry cannot be read

local workers = redis.pcall('ZCARD', KEYS[#KEYS])
reply[#reply + 1] = type(workers) == 'number' and workers or 0
return reply
