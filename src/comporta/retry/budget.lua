-- Counts calls, and grants retries as long as they are few beside those. Twin of budget.py.
--
-- KEYS  for each budget: a hash of six slices by number modulo six, each `number calls retries`
-- ARGV  1: now in µs, or 0 for the server's clock;
--       then for each budget: calls to add, 1 to ask for a retry or 0 not to, least, ratio in millionths,
--       µs of a slice
-- reply for each budget: 1 if a retry is granted or 0, calls and retries of the window; an error in place of
--       the first when the key could not be used

local SLICES = 6
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

-- Up to fifteen digits: what anybody else may have written must not become a number that nothing can pass.
local function counted(text)
  local number, calls, retries = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if number and #number <= 15 and #calls <= 15 and #retries <= 15 then
    return tonumber(number), tonumber(calls), tonumber(retries)
  end
  return -1, 0, 0
end

local function asked(key, more, wanted, least, ratio, slice_us)
  local slice = (now_us - now_us % slice_us) / slice_us
  local found = redis.pcall('HMGET', key, '0', '1', '2', '3', '4', '5')
  if found.err then return found.err, 0, 0 end
  local own_calls, own_retries, calls, retries = 0, 0, more, 0
  for i = 1, SLICES do
    local number, slice_calls, slice_retries = counted(found[i])
    if number <= slice and number > slice - SLICES then
      calls, retries = calls + slice_calls, retries + slice_retries
      if number == slice then own_calls, own_retries = slice_calls, slice_retries end
    end
  end
  local allowed = math.max(least, math.floor(calls * ratio / 1000000))
  local granted = wanted == 1 and retries < allowed and 1 or 0
  if more + granted > 0 then
    local text = string.format('%.0f %.0f %.0f', slice, own_calls + more, own_retries + granted)
    redis.call('HSET', key, string.format('%.0f', slice % SLICES), text)
    redis.call('PEXPIRE', key, string.format('%.0f', math.ceil(slice_us * SLICES / 1000)))
  end
  return granted, calls, retries + granted
end

local reply = {}
for i = 1, #KEYS do
  local a = 5 * i - 3
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = asked(
    KEYS[i], tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]),
    tonumber(ARGV[a + 4]))
end
return reply
