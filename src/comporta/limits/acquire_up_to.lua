-- Takes as much of an amount as one limit can grant now, for one or more keys, each key separately.
-- scripts.py puts the Lua text of the strategy above this text and assigns its function to `strategy`.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each key the most to take
-- reply for each key the amount granted, or an error text if the key is unusable.
--       This text leaves the reply in `reply`; the store appends the statement that returns it.

local now_us = time_us(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, debt, pause_us = tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0
capacity, per_us, unit, window_us, debt, pause_us = effective_params(
  KEYS[1], now_us, capacity, per_us, unit, window_us)
local reply = {}
for i = 6, #ARGV do
  local key = KEYS[i - 4]
  local wait_us, remaining = strategy(key, now_us, 0, 0, false, capacity, per_us, unit, window_us, debt)
  reply[i - 5] = type(wait_us) == 'string' and wait_us or 0
  local amount = min(tonumber(ARGV[i]), remaining or 0)
  if amount >= 1 then
    wait_us = strategy(key, now_us, amount, 0, pause_us == 0, capacity, per_us, unit, window_us, debt)
    if wait_us == 0 and pause_us == 0 then reply[i - 5] = amount end
  end
end
