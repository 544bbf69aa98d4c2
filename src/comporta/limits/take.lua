-- The hot path: takes from one limit for one or more keys, each on its own, and says only how long to wait.
-- The text of the strategy stands above it, and a line that names its function `strategy` (take.py).
--
-- KEYS  1: the record of what is in force of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each key the amount to take
-- reply for each key wait_us; an error in its place when the key could not be used.
--       It is left in `reply`: what returns it is appended (stores/wire.py).

local now_us = moment(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, debt, pause_us = tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0
capacity, per_us, unit, window_us, debt, pause_us = in_force(KEYS[1], now_us, capacity, per_us, unit, window_us)
local reply, goes_on = {}, pause_us == 0
for i = 6, #ARGV do
  local wait_us = strategy(
    KEYS[i - 4], now_us, tonumber(ARGV[i]), 0, goes_on, capacity, per_us, unit, window_us, debt)
  if not goes_on and type(wait_us) == 'number' then wait_us = max(wait_us, pause_us) end
  reply[i - 5] = wait_us
end
