-- The first part of the lease script: its arguments, and `apply`, which the Lua text of a strategy's leases uses.
-- See lease.lua for KEYS and ARGV. scripts.py composes: the strategy, one_limit.lua, this text, the strategy's leases,
-- lease.lua.

local ttl_us = tonumber(ARGV[6])

-- Takes, peeks (amount 0) or releases (below 0); returns the wait and what remains.
local function apply(key, amount, commit)
  return strategy(key, now_us, amount, 0, commit, capacity, per_us, unit, window_us, debt)
end
