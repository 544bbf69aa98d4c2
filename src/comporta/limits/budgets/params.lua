-- The first part of the settle script: its arguments, and `apply`, which the Lua text of a strategy's settlements uses.
-- See settle.lua for KEYS and ARGV. scripts.py composes: the strategy, this text, the strategy's settlements,
-- settle.lua.

local now_us = time_us(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, debt = tonumber(ARGV[4]), tonumber(ARGV[5]), 0
capacity, per_us, unit, window_us, debt = effective_params(KEYS[1], now_us, capacity, per_us, unit, window_us)

-- Takes an amount whether it is available or not (-2 is SETTLE), peeks (0) or releases (below 0).
local function apply(key, amount)
  return strategy(key, now_us, amount, -2, amount ~= 0, capacity, per_us, unit, window_us, debt)
end
