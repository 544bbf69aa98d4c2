-- Updates and reads one hour of numbers in slots of 10 s, for one or more series. Lua version of history.py.
--
-- KEYS  the series, each a hash: up to 24 numbers as text by the number of the slot, and `last`: the newest slot
-- ARGV  1: now in µs, or 0 for the server's clock
--       then for each series: record or read;
--       for record the number of columns to add to, then column (from 0) and number in turns; the number of columns
--       to set, then column and value in turns; the number of marks, then column and power of two in turns
--       for read the number of slots, the current one included
-- reply for each series the number of the current slot for record, {now in µs, slot, numbers, slot, numbers,
--       ...} for read, or the text of the error if the key cannot be used

local slots, columns, slot_us, number_max = 360, 24, 10000000, 4294967295
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = math.floor(now_us / slot_us)
local position = 2

local function field(number) return string.format('%.0f', number) end

local now_field = field(now)

local function next_number()
  position = position + 1
  return tonumber(ARGV[position - 1])
end

local function read(key, count)
  local names, reply = {}, {now_us}
  for number = now - count + 1, now do names[#names + 1] = field(number) end
  local values = redis.pcall('HMGET', key, unpack(names))
  if values.err then return values.err end
  for i, numbers in ipairs(values) do
    if numbers then
      reply[#reply + 1] = names[i]
      reply[#reply + 1] = numbers
    end
  end
  return reply
end

local function drop(key, first, last)
  local names = {}
  for number = first, last do names[#names + 1] = field(number) end
  if #names > 0 then redis.call('HDEL', key, unpack(names)) end
end

-- Drops slots more than an hour away, in the future too: the server's clock may have been set back.
local function prune(key, last)
  if last and math.abs(now - last) >= slots then
    redis.call('DEL', key)
  elseif last and last ~= now then
    drop(key, last - slots + 1, now - slots)
    drop(key, now + 1, last)
  end
end

-- Numbers that do not change stay texts, and the text ends with the last column that was used.
local function updated(text)
  local numbers = {}
  for number in string.gmatch(text, '%d+') do numbers[#numbers + 1] = number end
  local function next_column()
    local column = next_number() + 1
    for i = #numbers + 1, column do numbers[i] = '0' end
    return column
  end
  for _ = 1, next_number() do
    local column = next_column()
    numbers[column] = math.min(numbers[column] + next_number(), number_max)
  end
  for _ = 1, next_number() do
    local column = next_column()
    numbers[column] = next_number()
  end
  for _ = 1, next_number() do
    local column, power = next_column(), next_number()
    if math.floor(numbers[column] / power) % 2 == 0 then numbers[column] = numbers[column] + power end
  end
  return table.concat(numbers, ' ', 1, math.min(#numbers, columns))
end

local function record(key)
  local fields = redis.pcall('HMGET', key, 'last', now_field)
  if fields.err then
    updated('') -- skips the arguments of this series
    return fields.err
  end
  local last = tonumber(fields[1] or '')
  prune(key, last)
  redis.call('HSET', key, now_field, updated(fields[2] or ''), 'last', now_field)
  if last ~= now then redis.call('PEXPIRE', key, field((slots + 1) * slot_us / 1000)) end
  return now
end

local reply = {}
for i, key in ipairs(KEYS) do
  position = position + 1
  if ARGV[position - 1] == 'record' then reply[i] = record(key) else reply[i] = read(key, next_number()) end
end
return reply
