-- Counts calls, and grants retries while they are few compared with the calls. The same algorithm as
-- budget.py.
--
-- KEYS  one for each budget: a hash of six slices by slice number modulo six, each `number calls retries`
-- ARGV  1: now in µs, or 0 for the server's clock;
--       then five for each budget: calls to add, 1 to ask for a retry or 0, least, ratio in millionths,
--       the length of a slice in µs
-- reply three for each budget: 1 if a retry is granted or 0, calls and retries in the window; if the key
--       holds another type, the error text replaces the first number

local SLICES = 6
local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end

-- Parse a slice. At most fifteen digits: another program's value must not become a number that blocks all retries.
local function parse_slice(text)
  local number, calls, retries = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if number and #number <= 15 and #calls <= 15 and #retries <= 15 then
    return tonumber(number), tonumber(calls), tonumber(retries)
  end
  return -1, 0, 0
end

local function apply(key, added_calls, wants_retry, least, ratio, slice_us)
  local slice = (now_us - now_us % slice_us) / slice_us
  local stored = redis.pcall('HMGET', key, '0', '1', '2', '3', '4', '5')
  if stored.err then return stored.err, 0, 0 end
  local own_calls, own_retries, calls, retries = 0, 0, added_calls, 0
  for i = 1, SLICES do
    local number, slice_calls, slice_retries = parse_slice(stored[i])
    if number <= slice and number > slice - SLICES then
      calls, retries = calls + slice_calls, retries + slice_retries
      if number == slice then own_calls, own_retries = slice_calls, slice_retries end
    end
  end
  local allowed = math.max(least, math.floor(calls * ratio / 1000000))
  local granted = wants_retry == 1 and retries < allowed and 1 or 0
  if added_calls + granted > 0 then
    local text = string.format('%.0f %.0f %.0f', slice, own_calls + added_calls, own_retries + granted)
    redis.call('HSET', key, string.format('%.0f', slice % SLICES), text)
    redis.call('PEXPIRE', key, string.format('%.0f', math.ceil(slice_us * SLICES / 1000)))
  end
  return granted, calls, retries + granted
end

local reply = {}
for i = 1, #KEYS do
  local a = 5 * i - 3
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] = apply(
    KEYS[i], tonumber(ARGV[a]), tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3]),
    tonumber(ARGV[a + 4]))
end
return reply
