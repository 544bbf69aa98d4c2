-- Asks one limit without taking from it, for one or more keys, each key separately.
-- scripts.py puts the Lua text of the strategy above this text and assigns its function to `strategy`.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each key the amount that a caller would take, above 0
-- reply for each key the eight integers of limit.lua, with the wait of that caller, or an error text in place of the
--       first if the key is unusable.
--       This text leaves the reply in `reply`; the store appends the statement that returns it.

local now_us = time_us(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, debt, pause_us, original = tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0, 0
capacity, per_us, unit, window_us, debt, pause_us, original = effective_params(
  KEYS[1], now_us, capacity, per_us, unit, window_us)
local reply, r = {}, 1
for i = 6, #ARGV do
  local key = KEYS[i - 4]
  local wait_us = strategy(key, now_us, tonumber(ARGV[i]), 0, false, capacity, per_us, unit, window_us, debt)
  local _, remaining, reset_us, recent, last_us = strategy(
    key, now_us, 0, 0, false, capacity, per_us, unit, window_us, debt)
  if type(wait_us) == 'string' then
    reply[r] = wait_us
    for j = r + 1, r + 7 do reply[j] = 0 end
  else
    wait_us = max(wait_us, pause_us)
    reply[r], reply[r + 1], reply[r + 2], reply[r + 3] = wait_us, capacity, remaining, wait_us
    reply[r + 4], reply[r + 5] = reset_us, traffic_recent(recent, last_us, now_us)
    reply[r + 6], reply[r + 7] = pause_us, original
  end
  r = r + 8
end
