-- Keeps an hour of numbers in slots of ten seconds. Twin of history.py.
--
-- KEYS  1: the series, a hash: 24 numbers as text by the number of the slot, and `last`: the newest slot
-- ARGV  1: now in µs, or 0 for the server's clock
--       2: tell or recall
--       for tell 3: how many columns to add to, then what, then columns (from 0) to set, by turns with what
--       for recall 3: how many slots, the present one among them
-- reply {number of the present slot} for tell; {now in µs, slot, numbers, slot, numbers, ...} for recall

local slots, columns, slot_us, most = 360, 24, 10000000, 4294967295
local key, verb, count = KEYS[1], ARGV[2], tonumber(ARGV[3])
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local now = math.floor(now_us / slot_us)

local function named(number) return string.format('%.0f', number) end

if verb == 'recall' then
  local names, reply = {}, {now_us}
  for number = now - count + 1, now do names[#names + 1] = named(number) end
  for i, numbers in ipairs(redis.call('HMGET', key, unpack(names))) do
    if numbers then
      reply[#reply + 1] = names[i]
      reply[#reply + 1] = numbers
    end
  end
  return reply
end

local function drop(first, last)
  local names = {}
  for number = first, last do names[#names + 1] = named(number) end
  if #names > 0 then redis.call('HDEL', key, unpack(names)) end
end

local last = tonumber(redis.call('HGET', key, 'last') or '')
if last and math.abs(now - last) >= slots then
  redis.call('DEL', key)
elseif last and last ~= now then
  drop(last - slots + 1, now - slots)
  drop(now + 1, last) -- the server's clock was set back
end

local numbers = {}
for number in string.gmatch(redis.call('HGET', key, named(now)) or '', '%d+') do
  numbers[#numbers + 1] = tonumber(number)
end
for i = 1, columns do numbers[i] = numbers[i] or 0 end
for i = 1, count do numbers[i] = math.min(numbers[i] + tonumber(ARGV[3 + i]), most) end
for i = 4 + count, #ARGV, 2 do numbers[tonumber(ARGV[i]) + 1] = tonumber(ARGV[i + 1]) end
for i = 1, columns do numbers[i] = named(numbers[i]) end

redis.call('HSET', key, named(now), table.concat(numbers, ' ', 1, columns), 'last', named(now))
redis.call('PEXPIRE', key, named((slots + 1) * slot_us / 1000))
return {now}
