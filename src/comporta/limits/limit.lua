-- Decides one or more groups of limits in one step; each group is charged as a whole or not at all.
-- scripts.py puts the Lua text of each strategy above this text and fills the table `STRATEGIES`.
--
-- KEYS  for each limit: its state, its override record (a string: see overrides/record.py)
-- ARGV  1: now in µs, or 0 for the server's clock
--       then for each group: the number of its limits, and for each of them
--         the name of the strategy,
--         amount (above 0: take, 0: peek, below 0: release),
--         max_wait_us (-1: the amount was already used, so it is charged whether it is available or not),
--         capacity, per_us, unit, window_us,
--         the headroom of the caller's class: units of the capacity that it leaves to higher classes
-- reply for each limit eight integers: wait_us (granted if at most max_wait_us), capacity, remaining,
--       retry_us (0 if granted), reset_us, recent (only for a peek), how long the limit is paused, its capacity
--       without degradation;
--       an error text in place of wait_us if the key is unusable.
--       This text leaves the reply in `reply`; the store appends the statement that returns it.

local reply = {}

local now_us = time_us(ARGV[1])

-- Decides limit number `n`, whose eight arguments start at ARGV[a], and writes its reply at reply[r]; returns whether
-- the limit grants the amount.
local function decide(n, a, r, commit)
  local amount, max_wait_us = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local capacity, per_us = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local unit, window_us, debt, pause_us, original = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]), 0, 0, 0
  capacity, per_us, unit, window_us, debt, pause_us, original = effective_params(
    KEYS[2 * n], now_us, capacity, per_us, unit, window_us)
  local paused = pause_us > 0 and amount > 0 and max_wait_us >= 0
  local key, strategy = KEYS[2 * n - 1], STRATEGIES[ARGV[a]]
  local floor_units = headroom_floor(
    key, now_us, amount, tonumber(ARGV[a + 7]), tonumber(ARGV[a + 3]), capacity, per_us, window_us)
  local wait_us, remaining, reset_us, recent, last_us = 0, 0, 0, nil, 0
  if floor_units > 0 then -- grant only if the floor could be taken as well
    wait_us, remaining, reset_us, recent, last_us = strategy(
      key, now_us, amount + floor_units, max_wait_us, false, capacity, per_us, unit, window_us, debt)
  end
  if type(wait_us) == 'number' and (wait_us <= max_wait_us or max_wait_us < 0) then
    wait_us, remaining, reset_us, recent, last_us = strategy(
      key, now_us, amount, max_wait_us, commit and amount ~= 0 and not paused,
      capacity, per_us, unit, window_us, debt)
  end
  if type(wait_us) == 'string' then
    reply[r] = wait_us
    for i = r + 1, r + 7 do reply[i] = 0 end
    return false
  end
  if paused then wait_us = max(wait_us, pause_us, max_wait_us + 1) end
  if amount == 0 then wait_us = pause_us end
  local granted = max_wait_us < 0 or wait_us <= max_wait_us
  reply[r], reply[r + 1], reply[r + 2] = wait_us, capacity, remaining
  reply[r + 3], reply[r + 4] = granted and 0 or wait_us, reset_us
  reply[r + 5] = amount == 0 and traffic_recent(recent, last_us, now_us) or 0
  reply[r + 6], reply[r + 7] = pause_us, original
  return granted
end

local a, n = 2, 0
while ARGV[a] do
  local limits = tonumber(ARGV[a])
  local all_grant = true
  if limits > 1 then
    for i = 1, limits do all_grant = decide(n + i, a - 7 + 8 * i, 8 * (n + i) - 7, false) and all_grant end
  end
  for i = 1, limits do decide(n + i, a - 7 + 8 * i, 8 * (n + i) - 7, all_grant) end
  a, n = a + 1 + 8 * limits, n + limits
end
