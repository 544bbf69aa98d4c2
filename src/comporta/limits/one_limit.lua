-- The common start of the scripts of one limit: its parameters in effect, the units that waiters have
-- claimed, and taking without touching those units. Lua version of `take_in_order` (claims.py); claims.lua
-- says how claims are written. scripts.py puts the Lua text of the strategy and the time, `now_us`, above
-- this text, and assigns the strategy's function to `strategy`.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us; the rest is the script's

local original, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, capacity, debt, pause_us, undegraded = tonumber(ARGV[4]), tonumber(ARGV[5]), 0, 0, 0, 0
capacity, per_us, unit, window_us, debt, pause_us, undegraded = effective_params(
  KEYS[1], now_us, original, per_us, unit, window_us)

-- The units that a caller who does not wait leaves to waiters of its class and of higher ones.
local function claimed_units(key, rank)
  local text = pcall('HGET', key, 'w')
  if type(text) ~= 'string' then return 0 end
  local claimed = 0
  for claim_rank, since_us, units, ends_us in string.gmatch(text, '%d+:(%d+):(%d+):(%d+):(%d+)') do
    claim_rank = tonumber(claim_rank)
    local is_ahead = claim_rank < rank or (claim_rank == rank and tonumber(since_us) < now_us)
    if is_ahead and tonumber(ends_us) > now_us then claimed = claimed + units end
  end
  return claimed
end

-- How long until `amount` can be taken above the floor and the units ahead; 0 if it was taken, or could be if
-- `commit` is false.
local function take(key, amount, floor_units, ahead, commit)
  local needed = amount + floor_units + ahead
  if ahead > 0 and needed > capacity then -- the waiters ahead go first, however much is available
    local wait_us = strategy(key, now_us, capacity, 0, false, capacity, per_us, unit, window_us, debt)
    if type(wait_us) ~= 'number' then return wait_us end
    local more_us = per_us > 0 and ceil((needed - capacity) * unit / per_us) or 0
    return max(wait_us + more_us, pause_us, 1000)
  end
  local wait_us = 0
  if needed > amount then
    wait_us = strategy(key, now_us, needed, 0, false, capacity, per_us, unit, window_us, debt)
  end
  if wait_us == 0 then
    wait_us = strategy(
      key, now_us, amount, 0, commit and pause_us == 0, capacity, per_us, unit, window_us, debt)
  end
  return type(wait_us) == 'number' and max(wait_us, pause_us) or wait_us
end
