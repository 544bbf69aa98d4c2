-- Settling what calls cost, for strategies that do not record when each unit was taken.
-- Lua version of `RegisteredStrategy.settle`.

local function credit(key, amount, age_us)
  apply(key, -amount)
  return true
end

local function debit(key, amount, age_us)
  apply(key, amount)
  return true
end
