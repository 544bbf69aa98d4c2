-- Changes what is in force of one limit: degradation, pauses, and what an operator sets. Twin of adjust.py.
--
-- KEYS  1: the record of what is in force (a string: see in_force.py)
-- ARGV  1: now in µs, or 0 for the server's clock
--       2: drop, accept, climb, pause, resume, set, revoke or look
--       3-6: capacity, per_us, unit, window_us: as configured, for set those to be in force
--       7-9: for drop: by how many millionths, the floor in millionths
--            for accept: the rate that passed in requests per 1000 s, the floor, and the µs since the last drop
--            within which there is none
--            for climb: by how many millionths, and the µs between two climbs; for pause: its µs
--       10: for set: words for people
-- reply {1 if anything was changed, the share in millionths before, the share now, µs left of the pause,
--       the record as it is now, empty if there is none}

local WHOLE, DEGRADED_US, PAUSE_US_MAX, PAUSE_SLACK_US = 1000000, 300000000, 86400000000, 60000000
local key, verb, now_us = KEYS[1], ARGV[2], moment(ARGV[1])
local base = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local first, second, third = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local by_hand, words = false, ''
local share, ends_us, dropped_us, climbed_us, until_us, length_us = WHOLE, 0, 0, 0, 0, 0

local function read(text)
  local c, p, u, w, rest = match(text, '^([1-9]%d*) (%d+) (%d+) (%d+)(.*)$')
  if not c or not sensible(c, p, u, w) then return end
  local said, after = match(rest, '^ %[(.-)%](.*)$')
  if not said then said, after = '', rest end
  local s, bc, bp, bu, bw, e, d, l = match(said,
    'degraded to (%d+) of ([1-9]%d*) (%d+) (%d+) (%d+) ends (%d+) dropped (%d+) climbed (%d+)')
  if s and s + 0 >= WHOLE then s = nil end
  if s and not sensible(bc, bp, bu, bw) then return end
  if s then c, p, u, w = bc, bp, bu, bw end
  by_hand = not string.find(said, 'not set by hand', 1, true)
  if by_hand or s then base = {tonumber(c), tonumber(p), tonumber(u), tonumber(w)} end
  if by_hand then words = string.sub(match(after, '^ ?(.*)$'), 1, 200) end
  if s then
    share, ends_us, dropped_us, climbed_us = tonumber(s), min(e + 0, 2^53), min(d + 0, 2^53), min(l + 0, 2^53)
  end
  local paused, length = match(said, 'paused until (%d+) for (%d+)')
  if paused then until_us, length_us = tonumber(paused), min(tonumber(length), PAUSE_US_MAX) end
end

local function paused_us()
  local left_us = until_us - now_us
  return left_us <= length_us + PAUSE_SLACK_US and max(0, min(left_us, length_us)) or 0
end

-- See scaled in in_force.py.
local function scaled()
  local capacity, per_us, unit, window_us = unpack(base)
  if share >= WHOLE then return capacity, per_us, unit, window_us end
  local lowered = max(1, floor(capacity * share / WHOLE))
  if per_us == 0 then return lowered, per_us, unit, window_us end
  local full, finer = capacity * unit, WHOLE
  while finer > 1 and (full * finer > 2^52 or per_us * finer > 2^52) do finer = finer / 10 end
  while finer > 1000 and full * finer > 1e14 do finer = finer / 10 end
  local fine = per_us * finer
  -- in two parts, each of them exact
  local slower = floor(fine / WHOLE) * share + floor(fine % WHOLE * share / WHOLE)
  return lowered, max(1, slower), unit * finer, window_us
end

local function numbers_text(...)
  local texts = {...}
  for i, n in ipairs(texts) do texts[i] = format('%.0f', n) end
  return table.concat(texts, ' ')
end

local function written()
  local said = {}
  if share < WHOLE then
    said[1] = format('degraded to %.0f of %s ends %.0f dropped %.0f climbed %.0f',
      share, numbers_text(unpack(base)), ends_us, dropped_us, climbed_us)
  end
  if until_us > 0 then said[#said + 1] = format('paused until %.0f for %.0f', until_us, length_us) end
  if not by_hand then said[#said + 1] = 'not set by hand' end
  local text = numbers_text(scaled())
  if #said > 0 then text = text .. ' [' .. table.concat(said, '; ') .. ']' end
  return words == '' and text or text .. ' ' .. words
end

local change = pcall('GET', key)
if type(change) == 'table' and change.err and verb ~= 'set' and verb ~= 'revoke' then return change end
if type(change) == 'string' then read(change) end
if now_us >= ends_us and share < WHOLE then share, ends_us, dropped_us, climbed_us = WHOLE, 0, 0, 0 end
if paused_us() == 0 then until_us, length_us = 0, 0 end

local before, touched, changed = share, true, false
if verb == 'drop' then
  share = min(share, max(second, share - first, 1))
  dropped_us, ends_us, changed = now_us, now_us + DEGRADED_US, share ~= before
elseif verb == 'accept' then
  local since_us = now_us - dropped_us
  if share < WHOLE and since_us >= 0 and since_us < third then
    touched = false
  else
    local target = base[2] > 0 and first * base[3] / (base[2] * 1000) or first * base[4] / (base[1] * 1000)
    share = min(share, max(second, floor(min(target, WHOLE)), 1))
    dropped_us, ends_us, changed = now_us, now_us + DEGRADED_US, share ~= before
  end
elseif verb == 'climb' then
  local since_us = now_us - max(dropped_us, climbed_us)
  if share == WHOLE or since_us >= 0 and since_us < second then
    touched = false
  else
    local one = base[2] > 0 and ceil(base[3] / base[2]) or ceil(WHOLE / base[1])
    share = min(WHOLE, share + max(first, one))
    climbed_us, ends_us, changed = now_us, now_us + DEGRADED_US, true
  end
elseif verb == 'pause' then
  touched = first > paused_us()
  changed = touched
  if touched then until_us, length_us = now_us + first, first end
elseif verb == 'resume' then
  touched = until_us > 0
  changed = touched
  until_us, length_us = 0, 0
elseif verb == 'set' or verb == 'revoke' then
  by_hand, words, changed = verb == 'set', string.sub(ARGV[10], 1, 200), true
  base = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
  share = WHOLE
else
  touched = false
end
if share == WHOLE then ends_us, dropped_us, climbed_us = 0, 0, 0 end

local text = (by_hand or share < WHOLE or until_us > 0) and written() or ''
if touched and text == '' then
  call('DEL', key)
elseif touched and by_hand then
  call('SET', key, text)
elseif touched then
  local keeps_us = max(ends_us, until_us > 0 and until_us + PAUSE_SLACK_US or 0) - now_us
  call('SET', key, text, 'PX', format('%.0f', max(1, ceil(keeps_us / 1000))))
end
return {changed and 1 or 0, before, share, paused_us(), text}
