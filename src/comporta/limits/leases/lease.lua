-- Ends a lease and grants the next one, for one or more keys of one limit, each key separately.
-- The last part of the lease script: params.lua and the strategy's leases (`grant_lease`, `return_lease`) are above it.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us; 6: ttl_us;
--       then for each key: the amount needed at once (0: only end a lease), the amount wanted in total,
--       and the lease that ends: its id, the units leased, the unused units among them
-- reply for each key four integers: the amount granted (0: refused), how long the leased units may be used (µs), how
--       long until more is available (0: possibly now), and the id of the lease;
--       an error text in place of the first if the key is unusable

local reply = {}
local a, r, k = 7, 1, 2
while ARGV[a] do
  local key, needed, wanted = KEYS[k], tonumber(ARGV[a]), tonumber(ARGV[a + 1])
  local lent, unused = tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4])
  local wait_us, remaining = apply(key, 0, false)
  reply[r], reply[r + 1], reply[r + 2], reply[r + 3] = 0, 0, 0, 0
  if type(wait_us) == 'string' then
    reply[r], needed = wait_us, 0
  elseif lent > 0 or unused > 0 then
    if call('EXISTS', key) == 1 then return_lease(key, tonumber(ARGV[a + 2]), lent, unused) end
    wait_us, remaining = apply(key, 0, false)
  end
  if needed > 0 and pause_us > 0 then
    reply[r + 2] = max(pause_us, (apply(key, needed, false)))
  elseif needed > 0 then
    local ahead = claimed_units(key, 1)
    local amount = ahead > 0 and needed or max(needed, min(wanted, remaining)) -- no lease while others wait
    wait_us = take(key, amount, 0, ahead, true)
    if wait_us == 0 then
      reply[r] = amount
      reply[r + 1], reply[r + 3] = grant_lease(key, amount - needed)
      if amount < wanted then wait_us = take(key, 1, 0, ahead, false) end
    end
    reply[r + 2] = wait_us
  end
  a, r, k = a + 5, r + 4, k + 1
end
return reply
