-- Settling what calls of a fixed window cost. Lua version of `FixedWindowStrategy.settle`.
-- A credit counts only in the window in which the call was granted, a debit in the current one.

local function credit(key, amount, age_us)
  local start_us = floor((number(call('HGET', key, 'start')) or now_us / 1000000) * 1000000 + 0.5)
  local since_us = now_us - min(start_us, now_us)
  if age_us > since_us or since_us >= window_us then return false end
  apply(key, -amount)
  return true
end

local function debit(key, amount, age_us)
  apply(key, amount)
  return true
end
