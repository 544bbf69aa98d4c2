-- Takes as much of an amount as one limit can grant now, for one or more keys, each key separately.
-- scripts.py puts headroom.lua and one_limit.lua above this text.
--
-- ARGV  from 6: for each key the most to take, the headroom of the caller's class, and its rank
-- reply for each key the amount granted, or an error text if the key is unusable.

local reply = {}
for i = 6, #ARGV, 3 do
  local r = (i - 6) / 3 + 1
  local key, rank = KEYS[r + 1], tonumber(ARGV[i + 2])
  local wait_us, remaining = strategy(key, now_us, 0, 0, false, capacity, per_us, unit, window_us, debt)
  reply[r] = type(wait_us) == 'string' and wait_us or 0
  local kept = claimed_units(key, rank)
    + headroom_floor(key, now_us, 1, tonumber(ARGV[i + 1]), original, capacity, per_us, window_us)
  local amount = min(tonumber(ARGV[i]), (remaining or 0) - kept)
  if amount >= 1 and take(key, amount, 0, 0, true) == 0 then reply[r] = amount end
end
return reply
