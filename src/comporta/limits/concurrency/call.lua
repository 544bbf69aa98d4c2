-- Takes a permit and an amount from a limit for one or more calls: for each call both or neither.
-- Lua version of `AcquireForCall` and `ReleaseCall` in call.py, which puts the Lua text of the limit's strategy,
-- permit_support.lua and one_limit.lua above this text.
--
-- KEYS  1: the override record of the limit; then for each call: the state of the limit, the permits, the claims
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each call: the amount (above 0: take; 0: take only a permit; below 0: release the amount and the
--       permits); the permit, and below it permits to release first, one per line; the number of permits; the time
--       to live of a permit in µs; the rank of the caller's class, which leaves what waiters of that class and of
--       higher ones have claimed (-1: no claim counts)
-- reply for each call: 1 if it was granted, else 0; the wait for the limit in µs, or -1 if no permit was free;
--       how many other processes wait for a permit.
--       If a key is unusable: an error text in place of the first, then the number of the key from 0, then 0.

-- The wait for the limit, or the error of an unusable key; takes the amount if there is no wait.
local function take_amount(state, amount, rank)
  if amount == 0 then return 0 end
  if amount > 0 then return take(state, amount, 0, claimed_units(state, rank), true) end
  return (strategy(state, now_us, amount, 0, true, capacity, per_us, unit, window_us, debt))
end

local function apply(state, key, waiting, amount, permits, max_permits, ttl_us, rank)
  local permits_error = remove_expired(key, ttl_us)
  if permits_error then return permits_error, 1, 0 end
  remove_permits(key, permits)
  local permit, owner = first_permit(permits)
  local others, _, claims_error = read_claims(waiting, owner)
  if claims_error then return claims_error, 2, 0 end
  if amount >= 0 and redis.call('ZCARD', key) + count_claims_ahead(others, owner, now_us) >= max_permits then
    return 0, -1, #others
  end
  local wait_us = take_amount(state, amount, rank)
  if type(wait_us) == 'string' then return wait_us, 0, 0 end
  if wait_us > 0 then return 0, wait_us, #others end
  if amount >= 0 then add_permit(key, permit, ttl_us) end
  return 1, 0, #others
end

local reply = {}
for i = 1, (#ARGV - 5) / 5 do
  local k, a = 3 * i - 1, 5 * i + 1
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = apply(
    KEYS[k], KEYS[k + 1], KEYS[k + 2], tonumber(ARGV[a]), ARGV[a + 1], tonumber(ARGV[a + 2]),
    tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]))
end
return reply
