-- Charges limits with what a worker granted during an outage, each report once.
-- scripts.py puts the Lua text of the strategy above this text and assigns its function to `strategy`.
--
-- KEYS  for each report: the state, the override record of the limit, and the marker (a string: the number of the last
--       report of this worker for this limit that was applied)
-- ARGV  1: now in µs, or 0 for the server's clock;
--       then for each report: its number (0: apply it each time), the amount, capacity, per_us, unit, window_us, and for how many ms the
--       marker is kept
-- reply for each report 1 if it was applied now, 0 if it was applied before, or an error text if a key is unusable.

local now_us, reply = time_us(ARGV[1]), {}

for i = 1, #KEYS / 3 do
  local a, key, marker = 7 * i - 5, KEYS[3 * i - 2], KEYS[3 * i]
  local applied = ARGV[a] ~= '0' and pcall('GET', marker)
  if type(applied) == 'table' then
    reply[i] = applied.err
  elseif applied and number(applied) and number(applied) >= tonumber(ARGV[a]) then
    reply[i] = 0
  else
    local capacity, per_us, unit, window_us, debt = effective_params(KEYS[3 * i - 1], now_us,
      tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]))
    local wait_us = strategy(
      key, now_us, tonumber(ARGV[a + 1]), -1, true, capacity, per_us, unit, window_us, debt)
    if type(wait_us) == 'string' then
      reply[i] = wait_us
    else
      if ARGV[a] ~= '0' then call('SET', marker, ARGV[a], 'PX', ARGV[a + 6]) end
      reply[i] = 1
    end
  end
end
return reply
