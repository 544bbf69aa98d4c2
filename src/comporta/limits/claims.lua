-- Takes from one limit for one or more callers that have a priority class or wait, each separately.
-- Lua version of `ClaimOperation` (claim_operation.py). scripts.py puts headroom.lua, claim_support.lua and
-- one_limit.lua above this text.
--
-- ARGV  from 6: for each key the amount to take, the headroom of the caller's class, who the caller is, its rank, how
--       long its process has waited, and how long it will wait (below 0: not at all)
-- reply for each key wait_us, or an error text if the key is unusable.

local reply = {}
for i = 6, #ARGV, 6 do
  local r = (i - 6) / 6 + 1
  local key, amount, own, rank = KEYS[r + 1], tonumber(ARGV[i]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local since_us, left_us = now_us - ARGV[i + 4], tonumber(ARGV[i + 5])
  local text = claims_text(key)
  local claims, ahead = read_claims(text, now_us, own, rank, since_us)
  local floor_units = headroom_floor(
    key, now_us, amount, tonumber(ARGV[i + 1]), original, capacity, per_us, window_us)
  local wait_us = take(key, amount, floor_units, ahead, true)
  reply[r] = wait_us
  if type(wait_us) == 'number' then
    reply[r] = write_claims(key, now_us, text, claims, own, rank, since_us, amount, wait_us, left_us)
  end
end
return reply
