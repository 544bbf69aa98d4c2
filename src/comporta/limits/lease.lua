-- Ends a lease and makes the next one, for one or more keys of one limit, each on its own.
-- The text of the strategy stands above it, and a line that names its function `strategy` and its number
-- `code` (lease.py). What the strategies do here is what `lend` and `take_back` do in their Python twins.
--
-- KEYS  1: the record of what is in force of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us; 6: life_us;
--       then for each key: the amount needed at once (0: only end a lease), the amount wanted in all,
--       and of the lease that ends: its name, how much was lent, how much of that is not used
-- reply for each key four integers: the amount granted (0: refused), for how long what is not used at once may
--       be used (µs), how long until there is more (0: there may be more now), and the name of the lease;
--       an error in place of the first when the key could not be used

local TOKEN_BUCKET, FIXED_WINDOW, SLIDING_WINDOW = 1, 3, 4
local SLIDING_LIFE = 202 -- see _life_us_max in sliding_window.py

local now_us = moment(ARGV[1])
local capacity, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us, life_us, debt, pause_us = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), 0, 0
capacity, per_us, unit, window_us, debt, pause_us = in_force(KEYS[1], now_us, capacity, per_us, unit, window_us)
if code == SLIDING_WINDOW then life_us = min(life_us, floor(window_us / SLIDING_LIFE)) end

-- Take, look or give back; returns the wait and what is left.
local function asked(key, amount, commit)
  return strategy(key, now_us, amount, 0, commit, capacity, per_us, unit, window_us, debt)
end

-- The book of a token bucket as of now: the number of this slice, what is out from it and from the one before.
local function book_of(key)
  local slice = floor(now_us / window_us)
  local number, current, before = match(call('HGET', key, 'o') or '', '^(%d+):(%d+):(%d+)$')
  number = tonumber(number)
  if number == slice then return slice, tonumber(current), tonumber(before) end
  return slice, 0, number == slice - 1 and tonumber(current) or 0
end

local function write_book(key, slice, current, before)
  call('HSET', key, 'o', format('%.0f:%.0f:%.0f', slice, current, before))
end

-- Strike a lease off the book; returns how much of it was there, or nothing if it is over.
local function struck(key, lease, lent)
  local slice, current, before = book_of(key)
  if lease ~= slice and lease ~= slice - 1 then return nil end
  asked(key, 0, true) -- the bucket has filled by the book as it was until now
  local off = min(lent, lease == slice and current or before)
  if lease == slice then current = current - off else before = before - off end
  write_book(key, slice, current, before)
  return off
end

local function window_start(key)
  return floor((number(call('HGET', key, 'start')) or -1) * 1000000 + 0.5)
end

local function take_back(key, lease, lent, unused)
  if call('EXISTS', key) == 0 then return end
  if code == TOKEN_BUCKET then
    local off = struck(key, lease, lent)
    unused = off and max(0, unused - (lent - off)) or 0
  elseif code == FIXED_WINDOW then
    if window_start(key) ~= lease or now_us < lease or now_us - lease >= window_us then return end
  elseif code == SLIDING_WINDOW then
    if now_us < lease or now_us - lease > life_us then return end
  else
    return
  end
  if unused > 0 then asked(key, -unused, true) end
end

-- Returns for how long what was lent may be used, and the name of the lease.
local function lend(key, amount)
  if code == TOKEN_BUCKET then
    local slice, current, before = book_of(key)
    if amount > 0 then write_book(key, slice, current + amount, before) end
    return window_us, slice
  elseif code == FIXED_WINDOW then
    local start_us = window_start(key)
    return min(life_us, start_us + window_us - now_us), start_us
  elseif code == SLIDING_WINDOW then
    return life_us, now_us
  end
  return 0, 0
end

local reply = {}
local a, r, k = 7, 1, 2
while ARGV[a] do
  local key, need, want = KEYS[k], tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local lent, unused = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local wait_us, left = asked(key, 0, false)
  reply[r], reply[r + 1], reply[r + 2], reply[r + 3] = 0, 0, 0, 0
  if type(wait_us) == 'string' then
    reply[r], need = wait_us, 0
  elseif lent > 0 or unused > 0 then
    take_back(key, tonumber(ARGV[a + 2]), lent, unused)
    wait_us, left = asked(key, 0, false)
  end
  if need > 0 and pause_us > 0 then
    reply[r + 2] = max(pause_us, (asked(key, need, false)))
  elseif need > 0 then
    local amount = max(need, min(want, left))
    wait_us = asked(key, amount, true)
    if wait_us == 0 then
      reply[r] = amount
      reply[r + 1], reply[r + 3] = lend(key, amount - need)
      if amount < want then wait_us = asked(key, 1, false) end
    end
    reply[r + 2] = wait_us
  end
  a, r, k = a + 5, r + 4, k + 1
end
