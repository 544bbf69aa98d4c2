-- The fast path: takes from one limit for one or more keys, each key separately, and replies only with the waits.
-- scripts.py puts the Lua text of the strategy above this text and assigns its function to `strategy`.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each key the amount to take
-- reply for each key wait_us, or an error text if the key is unusable.
--       This text leaves the reply in `reply`; the store appends the statement that returns it.

local now_us = time_us(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, debt, pause_us = tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0
capacity, per_us, unit, window_us, debt, pause_us = effective_params(
  KEYS[1], now_us, capacity, per_us, unit, window_us)
local reply, is_running = {}, pause_us == 0
for i = 6, #ARGV do
  local wait_us = strategy(
    KEYS[i - 4], now_us, tonumber(ARGV[i]), 0, is_running, capacity, per_us, unit, window_us, debt)
  if not is_running and type(wait_us) == 'number' then wait_us = max(wait_us, pause_us) end
  reply[i - 5] = wait_us
end
