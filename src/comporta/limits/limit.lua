-- Decides one or more groups of limits in one step; each group is charged as a whole or not at all.
-- scripts.py puts the Lua text of each strategy, headroom.lua and claim_support.lua above this text and fills the
-- table `STRATEGIES`.
--
-- KEYS  for each limit: its state, its override record (a string: see overrides/record.py)
-- ARGV  1: now in µs, or 0 for the server's clock
--       then for each group: the number of its limits; who the caller is, the rank of its class (-1: no claim
--       counts), how long its process has waited, and how long it will wait (below 0: not at all); and for each limit
--         the name of the strategy,
--         amount (above 0: take, 0: peek, below 0: release),
--         max_wait_us (-1: the amount was already used, so it is charged whether it is available or not),
--         capacity, per_us, unit, window_us,
--         the headroom of the caller's class: units of the capacity that it leaves to higher classes,
--         1 if the limit is in shadow mode: its refusal does not keep the others from granting
-- reply for each limit eight integers: wait_us (granted if at most max_wait_us), capacity, remaining,
--       retry_us (0 if granted), reset_us, recent (only for a peek), how long the limit is paused, its capacity
--       without degradation;
--       an error text in place of wait_us if the key is unusable.

local reply = {}

local now_us = time_us(ARGV[1])
local _, traffic_recent = traffic_functions()

-- Decides limit number `n`, whose nine arguments start at ARGV[a], and writes its reply at reply[r]; returns whether
-- the limit grants the amount.
local function decide(n, a, r, commit, ahead)
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
  local kept = floor_units + ahead
  local missing = ahead > 0 and max(0, amount + kept - capacity) or 0
  if missing > 0 then -- the waiters ahead go first, however much is available
    wait_us, remaining, reset_us, recent, last_us = strategy(
      key, now_us, capacity, 0, false, capacity, per_us, unit, window_us, debt)
    if type(wait_us) == 'number' then
      wait_us = max(wait_us + (per_us > 0 and ceil(missing * unit / per_us) or 0), pause_us, 1000)
    end
  elseif kept > 0 then -- grant only if the reserved units could be taken as well
    wait_us, remaining, reset_us, recent, last_us = strategy(
      key, now_us, amount + kept, max_wait_us, false, capacity, per_us, unit, window_us, debt)
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
  local limits, own, rank = tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2])
  local since_us, left_us = now_us - ARGV[a + 3], tonumber(ARGV[a + 4])
  local all_grant, texts, claims, ahead = true, {}, {}, {}
  for i = 1, limits do
    local key, is_taken = KEYS[2 * (n + i) - 1], tonumber(ARGV[a - 3 + 9 * i]) > 0
    local text = rank >= 0 and is_taken and claims_text(key) or ''
    ahead[i] = 0
    if is_taken and (own > 0 or text ~= '') then
      texts[i], claims[i], ahead[i] = text, read_claims(text, now_us, own, rank, since_us)
    end
  end
  for round = limits > 1 and 1 or 2, 2 do -- if several limits must grant, the first round changes nothing
    local commit = round == 2 and all_grant
    for i = 1, limits do
      local at = a - 4 + 9 * i
      all_grant = (decide(n + i, at, 8 * (n + i) - 7, commit, ahead[i]) or ARGV[at + 8] == '1') and all_grant
    end
  end
  if own > 0 then
    local longest_us = 0
    for i = 1, limits do
      local is_shadow = ARGV[a + 4 + 9 * i] == '1'
      longest_us = max(longest_us, not is_shadow and tonumber(reply[8 * (n + i) - 7]) or 0)
    end
    for i, others in pairs(claims) do
      write_claims(KEYS[2 * (n + i) - 1], now_us, texts[i], others, own, rank, since_us,
        tonumber(ARGV[a - 3 + 9 * i]), longest_us, left_us)
    end
  end
  a, n = a + 5 + 9 * limits, n + limits
end
return reply
