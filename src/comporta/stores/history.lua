-- Keeps an hour of numbers in slots of ten seconds, for one or more series, each on its own. Twin of history.py.
--
-- KEYS  the series, each a hash: 24 numbers as text by the number of the slot, and `last`: the newest slot
-- ARGV  1: now in µs, or 0 for the server's clock
--       then for each series: tell or recall;
--       for tell how many columns to add to, then what; how many to set, then column (from 0) and number, by
--       turns; how many to mark, then column and the power of two to be in its sum, by turns
--       for recall how many slots, the present one among them
-- reply for each series the number of the present slot for tell, {now in µs, slot, numbers, slot, numbers, ...}
--       for recall; an error in its place when the key could not be used

local slots, columns, slot_us, most = 360, 24, 10000000, 4294967295
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = math.floor(now_us / slot_us)
local place = 2

local function named(number) return string.format('%.0f', number) end

-- The next argument, which is a number.
local function taken()
  place = place + 1
  return tonumber(ARGV[place - 1])
end

local function recalled(key, count)
  local names, reply = {}, {now_us}
  for number = now - count + 1, now do names[#names + 1] = named(number) end
  local found = redis.pcall('HMGET', key, unpack(names))
  if found.err then return found.err end
  for i, numbers in ipairs(found) do
    if numbers then
      reply[#reply + 1] = names[i]
      reply[#reply + 1] = numbers
    end
  end
  return reply
end

local function drop(key, first, last)
  local names = {}
  for number = first, last do names[#names + 1] = named(number) end
  if #names > 0 then redis.call('HDEL', key, unpack(names)) end
end

-- Drop what is more than an hour away; the server's clock may have been set back, too.
local function pruned(key, last)
  if last and math.abs(now - last) >= slots then
    redis.call('DEL', key)
  elseif last and last ~= now then
    drop(key, last - slots + 1, now - slots)
    drop(key, now + 1, last)
  end
end

local function changed(text)
  local numbers = {}
  for number in string.gmatch(text, '%d+') do numbers[#numbers + 1] = tonumber(number) end
  for i = 1, columns do numbers[i] = numbers[i] or 0 end
  for i = 1, taken() do numbers[i] = math.min(numbers[i] + taken(), most) end
  for _ = 1, taken() do
    local column = taken() + 1
    numbers[column] = taken()
  end
  for _ = 1, taken() do
    local column, power = taken() + 1, taken()
    if math.floor(numbers[column] / power) % 2 == 0 then numbers[column] = numbers[column] + power end
  end
  for i = 1, columns do numbers[i] = named(numbers[i]) end
  return table.concat(numbers, ' ', 1, columns)
end

local function told(key)
  local last = redis.pcall('HGET', key, 'last')
  if type(last) == 'table' then
    changed('') -- to pass by what is said of this one
    return last.err
  end
  pruned(key, tonumber(last or ''))
  local text = changed(redis.call('HGET', key, named(now)) or '')
  redis.call('HSET', key, named(now), text, 'last', named(now))
  redis.call('PEXPIRE', key, named((slots + 1) * slot_us / 1000))
  return now
end

local reply = {}
for i, key in ipairs(KEYS) do
  place = place + 1
  if ARGV[place - 1] == 'tell' then reply[i] = told(key) else reply[i] = recalled(key, taken()) end
end
return reply
