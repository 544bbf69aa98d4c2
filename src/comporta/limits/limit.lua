-- Decides one or more groups of limits, each group all or nothing, in one step.
-- The text of the strategies, one function each, stands above this one when it is loaded (operation.py).
--
-- KEYS  for each limit: its state, the record of what is in force of it (a string: see in_force.py)
-- ARGV  1: now in µs, or 0 for the server's clock
--       then for each group: the number of its limits, and for each of them
--         strategy (1 token bucket, 2 leaky bucket, 3 fixed window, 4 sliding window),
--         amount (above 0: take, 0: look, below 0: give back),
--         patience_us (-1: it was used already, so it is taken whether it is there or not),
--         capacity, per_us, unit, window_us
-- reply for each limit eight integers: wait_us (granted if within the patience), capacity, remaining,
--       retry_us (0 if granted), reset_us, recent (only for a look), for how long it is paused, its capacity if
--       it were not degraded;
--       an error in place of wait_us when its key could not be used.
--       It is left in `reply`: what returns it is appended (stores/wire.py).

local STRATEGIES = {token_bucket, leaky_bucket, fixed_window, sliding_window}
local reply = {}

local now_us = moment(ARGV[1])

-- Ask limit number `n`, whose seven numbers start at ARGV[a], and write its answer at reply[r]; returns whether
-- it grants.
local function ask(n, a, r, commit)
  local amount, patience_us = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local capacity, per_us = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local unit, window_us, debt, pause_us, original = tonumber(ARGV[a + 5]), tonumber(ARGV[a + 6]), 0, 0, 0
  capacity, per_us, unit, window_us, debt, pause_us, original = in_force(
    KEYS[2 * n], now_us, capacity, per_us, unit, window_us)
  local held = pause_us > 0 and amount > 0 and patience_us >= 0
  local wait_us, remaining, reset_us, recent, last_us = STRATEGIES[tonumber(ARGV[a])](
    KEYS[2 * n - 1], now_us, amount, patience_us, commit and amount ~= 0 and not held,
    capacity, per_us, unit, window_us, debt)
  if type(wait_us) == 'string' then
    reply[r] = wait_us
    for i = r + 1, r + 7 do reply[i] = 0 end
    return false
  end
  if held then wait_us = max(wait_us, pause_us, patience_us + 1) end
  if amount == 0 then wait_us = pause_us end
  local granted = patience_us < 0 or wait_us <= patience_us
  reply[r], reply[r + 1], reply[r + 2] = wait_us, capacity, remaining
  reply[r + 3], reply[r + 4] = granted and 0 or wait_us, reset_us
  reply[r + 5] = amount == 0 and traffic_recent(recent, last_us, now_us) or 0
  reply[r + 6], reply[r + 7] = pause_us, original
  return granted
end

local a, n = 2, 0
while ARGV[a] do
  local limits = tonumber(ARGV[a])
  local all = true
  if limits > 1 then
    for i = 1, limits do all = ask(n + i, a - 6 + 7 * i, 8 * (n + i) - 7, false) and all end
  end
  for i = 1, limits do ask(n + i, a - 6 + 7 * i, 8 * (n + i) - 7, all) end
  a, n = a + 1 + 7 * limits, n + limits
end
