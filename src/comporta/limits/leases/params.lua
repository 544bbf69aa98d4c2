-- The first part of the lease script: its arguments, and `apply`, which the Lua text of a strategy's leases uses.
-- See lease.lua for KEYS and ARGV. scripts.py composes: the strategy, this text, the strategy's leases, lease.lua.

local now_us = time_us(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, ttl_us, debt, pause_us = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), 0, 0
capacity, per_us, unit, window_us, debt, pause_us = effective_params(
  KEYS[1], now_us, capacity, per_us, unit, window_us)

-- Takes, peeks (amount 0) or releases (below 0); returns the wait and what remains.
local function apply(key, amount, commit)
  return strategy(key, now_us, amount, 0, commit, capacity, per_us, unit, window_us, debt)
end
