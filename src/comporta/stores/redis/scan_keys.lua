-- Reads a page of the keys of one node that match a pattern.
--
-- KEYS  none: SCAN finds them
-- ARGV  1: now in µs, not used; 2: the pattern; 3: the cursor, 0 to start
-- reply {next cursor ('0' at the end), key, key, ...}

local page = redis.call('SCAN', ARGV[3], 'MATCH', ARGV[2], 'COUNT', 500)
local reply = page[2]
table.insert(reply, 1, page[1])
return reply
