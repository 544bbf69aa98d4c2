-- Settles what one or more calls of one limit cost, each call separately. Lua version of `SettleOperation`.
-- The last part of the settle script: params.lua and the strategy's settlements (`credit`, `debit`) are above it.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each call: the amount (above 0: debit, below 0: credit) and how long ago it was granted in µs
-- reply for each call 1 if the state changed, else 0; an error text if the key is unusable.

-- Whether a window that began `age_us` ago has ended (`LimitParams.is_window_over`).
local function is_window_over(age_us)
  if per_us > 0 then return age_us * per_us >= capacity * unit end
  return age_us >= window_us
end

local function settle(key, amount, age_us)
  local wait_us, remaining, _, _, _, used = apply(key, 0)
  if type(wait_us) == 'string' then return wait_us end
  local changed
  if amount > 0 then
    amount = min(amount, 2 * capacity - (used or capacity - remaining))
    changed = amount > 0 and debit(key, amount, age_us)
  else
    changed = not is_window_over(age_us) and call('EXISTS', key) == 1 and credit(key, -amount, age_us)
  end
  return changed and 1 or 0
end

local reply = {}
for i = 1, (#ARGV - 5) / 2 do
  reply[i] = settle(KEYS[i + 1], tonumber(ARGV[2 * i + 4]), tonumber(ARGV[2 * i + 5]))
end
return reply
