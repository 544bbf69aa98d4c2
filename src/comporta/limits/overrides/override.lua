-- Changes the override record of one limit: degradation, pauses, and what an operator sets. Lua version of
-- operation.py.
--
-- KEYS  1: the override record (a string: see record.py), whose name is written to the change log
-- ARGV  1: now in µs, or 0 for the server's clock
--       2: drop, cut, accept, climb, curve, pause, resume, set, revoke or look
--       3-6: capacity, per_us, unit, window_us: as configured, or for set the operator's
--       7-10: drop: the step and the floor in millionths of the original limit, and the age of the refused call in
--             µs; 0: each error counts
--             cut: the step in millionths of the current limit, the floor, and the age
--             accept: the rate that passed in requests per 1000 s, the floor, the age, and the µs after a drop within
--             which there is no other drop
--             climb: the step in millionths, and the µs between two steps
--             curve: the size of a cut in millionths, the µs from a cut back to its peak, and the µs between two steps
--             pause: its length in µs
--       11: set: a note for people
-- reply {1 if anything changed, the share in millionths before, the share now, µs left of the pause,
--       the record after the change, or an empty text if there is none}

local WHOLE, DEGRADATION_TTL_US, PAUSE_US_MAX, PAUSE_SLACK_US = 1000000, 300000000, 86400000000, 60000000
local CLOCK_STEP_US_MAX = 1000000
local key, command, now_us = KEYS[1], ARGV[2], time_us(ARGV[1])
local base = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local first, second, third, fourth = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local set_by_operator, note = false, ''
local share, ends_us, dropped_us, climbed_us, until_us, length_us = WHOLE, 0, 0, 0, 0, 0
local peak, curve_us, paused_us = 0, 0, 0
local are_valid_params = params_checks()

local function parse(text)
  local c, p, u, w, rest = match(text, '^([1-9]%d*) (%d+) (%d+) (%d+)(.*)$')
  if not c or not are_valid_params(c, p, u, w) then return end
  local details, after = match(rest, '^ %[(.-)%](.*)$')
  if not details then details, after = '', rest end
  local s, bc, bp, bu, bw, e, d, l, rest_at = match(details,
    'degraded to (%d+) of ([1-9]%d*) (%d+) (%d+) (%d+) ends (%d+) dropped (%d+) climbed (%d+)()')
  if s and s + 0 >= WHOLE then s = nil end
  if s and not are_valid_params(bc, bp, bu, bw) then return end
  if s then c, p, u, w = bc, bp, bu, bw end
  set_by_operator = not string.find(details, 'not set by hand', 1, true)
  if set_by_operator or s then base = {tonumber(c), tonumber(p), tonumber(u), tonumber(w)} end
  if set_by_operator then note = string.sub(match(after, '^ ?(.*)$'), 1, 200) end
  if s then
    share, ends_us, dropped_us, climbed_us = tonumber(s), min(e + 0, 2^53), min(d + 0, 2^53), min(l + 0, 2^53)
    local from, since = match(details, '^ from (%d+) since (%d+)', rest_at)
    if from then peak, curve_us = min(from + 0, WHOLE), min(since + 0, 2^53) end
  end
  local paused_until, length, since_at = match(details, 'paused until (%d+) for (%d+)()')
  if paused_until then
    until_us, length_us = tonumber(paused_until), min(tonumber(length), PAUSE_US_MAX)
    paused_us = min(tonumber(match(details, '^ since (%d+)', since_at) or 0), 2^53)
  end
end

local function pause_left_us()
  local left_us = until_us - now_us
  return left_us <= length_us + PAUSE_SLACK_US and max(0, min(left_us, length_us)) or 0
end

-- See `scale_params` in record.py.
local function scaled_params()
  local capacity, per_us, unit, window_us = unpack(base)
  if share >= WHOLE then return capacity, per_us, unit, window_us end
  local lowered = max(1, floor(capacity * share / WHOLE))
  if per_us == 0 then return lowered, per_us, unit, window_us end
  local full, finer = capacity * unit, WHOLE
  while finer > 1 and (full * finer > 2^52 or per_us * finer > 2^52) do finer = finer / 10 end
  while finer > 1000 and full * finer > 1e14 do finer = finer / 10 end
  local fine = per_us * finer
  -- in two parts, both of them exact
  local slower = floor(fine / WHOLE) * share + floor(fine % WHOLE * share / WHOLE)
  return lowered, max(1, slower), unit * finer, window_us
end

local function integers_text(...)
  local texts = {...}
  for i, n in ipairs(texts) do texts[i] = format('%.0f', n) end
  return table.concat(texts, ' ')
end

local function encode()
  local details = {}
  if share < WHOLE then
    details[1] = format('degraded to %.0f of %s ends %.0f dropped %.0f climbed %.0f',
      share, integers_text(unpack(base)), ends_us, dropped_us, climbed_us)
    if peak > 0 then details[1] = details[1] .. format(' from %.0f since %.0f', peak, curve_us) end
  end
  if until_us > 0 then
    local since = paused_us > 0 and format(' since %.0f', paused_us) or ''
    details[#details + 1] = format('paused until %.0f for %.0f%s', until_us, length_us, since)
  end
  if not set_by_operator then details[#details + 1] = 'not set by hand' end
  local text = integers_text(scaled_params())
  if #details > 0 then text = text .. ' [' .. table.concat(details, '; ') .. ']' end
  return note == '' and text or text .. ' ' .. note
end

local function pause_start_us()
  return paused_us > 0 and paused_us or until_us - length_us
end

-- See `_is_answered` in operation.py.
local function is_answered(age_us)
  if age_us == 0 or share == WHOLE or dropped_us > now_us + CLOCK_STEP_US_MAX then return false end
  return until_us > 0 and dropped_us >= pause_start_us() or dropped_us >= now_us - age_us
end

local function lower(target, lowest)
  share = min(share, max(lowest, target, 1))
  dropped_us, ends_us, peak, curve_us = now_us, now_us + DEGRADATION_TTL_US, 0, 0
end

local function is_raise_due(every_us)
  local since_us = now_us - max(dropped_us, climbed_us)
  return share < WHOLE and not (since_us >= 0 and since_us < every_us)
end

-- See `cubic_share` in ramp.py.
local function cubic_share(by, every_us, elapsed_us)
  local position = floor((elapsed_us - every_us) * 1000 / every_us)
  if position >= 10000 then return WHOLE end
  local cube = floor(position * position * position / 1000)
  return min(WHOLE, peak + floor(floor(peak * by / WHOLE) * cube / WHOLE))
end

local record = pcall('GET', key)
if type(record) == 'table' and record.err and command ~= 'set' and command ~= 'revoke' then return record end
if type(record) == 'string' then parse(record) end
if now_us >= ends_us and share < WHOLE then
  share, ends_us, dropped_us, climbed_us, peak, curve_us = WHOLE, 0, 0, 0, 0, 0
end
if pause_left_us() == 0 then until_us, length_us, paused_us = 0, 0, 0 end

local before, write, changed = share, true, false
if command == 'drop' then
  write = not is_answered(third)
  if write then lower(share - first, second) end
elseif command == 'cut' then
  write = not is_answered(third)
  if write then
    lower(share - floor(share * first / WHOLE), second)
    peak, curve_us = before, now_us
  end
elseif command == 'accept' then
  local since_us = now_us - dropped_us
  write = not (share < WHOLE and since_us >= 0 and since_us < fourth or is_answered(third))
  if write then
    local target = base[2] > 0 and first * base[3] / (base[2] * 1000) or first * base[4] / (base[1] * 1000)
    lower(floor(min(target, WHOLE)), second)
  end
elseif command == 'climb' then
  write = is_raise_due(second)
  if write then
    local one_request = base[2] > 0 and ceil(base[3] / base[2]) or ceil(WHOLE / base[1])
    share = min(WHOLE, share + max(first, one_request))
    climbed_us, ends_us = now_us, now_us + DEGRADATION_TTL_US
  end
elseif command == 'curve' then
  write = is_raise_due(third)
  if write then
    peak = peak > 0 and peak or share
    curve_us = min(curve_us > 0 and curve_us or dropped_us, now_us)
    local idle_us = now_us - max(curve_us, min(climbed_us, now_us))
    curve_us = curve_us + max(0, idle_us - second)
    share = max(share, cubic_share(first, second, now_us - curve_us))
    climbed_us, ends_us = now_us, now_us + DEGRADATION_TTL_US
  end
elseif command == 'pause' then
  write = first > pause_left_us()
  changed = write
  if write then
    paused_us = until_us > 0 and max(0, pause_start_us()) or 0
    until_us, length_us = now_us + first, first
  end
elseif command == 'resume' then
  write = until_us > 0
  changed = write
  until_us, length_us, paused_us = 0, 0, 0
elseif command == 'set' or command == 'revoke' then
  set_by_operator, note, changed = command == 'set', string.sub(ARGV[11], 1, 200), true
  base = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
  share = WHOLE
else
  write = false
end
if share == WHOLE then ends_us, dropped_us, climbed_us, peak, curve_us = 0, 0, 0, 0, 0 end
changed = changed or write and share ~= before

local text = (set_by_operator or share < WHOLE or until_us > 0) and encode() or ''
if write and text == '' then
  call('DEL', key)
elseif write and set_by_operator then
  call('SET', key, text)
elseif write then
  local ttl_us = max(ends_us, until_us > 0 and until_us + PAUSE_SLACK_US or 0) - now_us
  call('SET', key, text, 'PX', format('%.0f', max(1, ceil(ttl_us / 1000))))
end
local is_step = command == 'drop' or command == 'cut' or command == 'accept' or command == 'climb' or command == 'curve'
if changed and not (is_step and before < WHOLE and share < WHOLE) then note_change(key, now_us) end
return {changed and 1 or 0, before, share, pause_left_us(), text}
