-- The fast path: takes from one limit for one or more keys, each key separately, and replies only with the waits.
-- The callers do not wait and are of the class "normal" (rank 1). scripts.py puts one_limit.lua above this text.
--
-- ARGV  from 6: for each key the amount to take
-- reply for each key wait_us, or an error text if the key is unusable.

local reply = {}
for i = 6, #ARGV do
  local key = KEYS[i - 4]
  reply[i - 5] = take(key, tonumber(ARGV[i]), 0, claimed_units(key, 1), true)
end
return reply
