-- Asks one limit without taking from it, for one or more keys, each key separately.
-- scripts.py puts headroom.lua and one_limit.lua above this text.
--
-- ARGV  from 6: for each key the amount that a caller would take, above 0, the headroom of its class, and its rank
-- reply for each key the eight integers of limit.lua, with the wait of that caller, or an error text in place of the
--       first if the key is unusable.

local _, traffic_recent = traffic_functions()
local reply, r = {}, 1
for i = 6, #ARGV, 3 do
  local key, amount = KEYS[(i - 6) / 3 + 2], tonumber(ARGV[i])
  local floor_units = headroom_floor(
    key, now_us, amount, tonumber(ARGV[i + 1]), original, capacity, per_us, window_us)
  local wait_us = take(key, amount, floor_units, claimed_units(key, tonumber(ARGV[i + 2])), false)
  local _, remaining, reset_us, recent, last_us = strategy(
    key, now_us, 0, 0, false, capacity, per_us, unit, window_us, debt)
  if type(wait_us) == 'string' then
    reply[r] = wait_us
    for j = r + 1, r + 7 do reply[j] = 0 end
  else
    reply[r], reply[r + 1], reply[r + 2], reply[r + 3] = wait_us, capacity, remaining, wait_us
    reply[r + 4], reply[r + 5] = reset_us, traffic_recent(recent, last_us, now_us)
    reply[r + 6], reply[r + 7] = pause_us, undegraded
  end
  r = r + 8
end
return reply
