-- Settling what calls of a calendar window cost. Lua version of `CalendarWindowStrategy.settle`.
-- A credit counts only in the window in which the call was granted, a debit in the current one.

local function credit(key, amount, age_us)
  local stored_us = floor((number(call('HGET', key, 'start')) or -1) * 1000000 + 0.5)
  local _, start_us = calendar_current(0, stored_us, now_us)
  if stored_us ~= start_us or now_us - age_us < start_us then return false end
  apply(key, -amount)
  return true
end

local function debit(key, amount, age_us)
  apply(key, amount)
  return true
end
