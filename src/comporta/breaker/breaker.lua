-- The steps of circuit breakers, each on its own. Twin of machine.py.
--
-- KEYS  for each breaker five: the count of failures (a string), until when it is open (a string, Unix seconds),
--       what is remembered of one that has tripped (a hash), what was counted (a hash), and what an operator said
-- ARGV  1: now in µs, or 0 for the server's clock; then for each breaker twenty: the verb (look, admit, fail,
--       succeed, give_back, reset, open); the eleven numbers of its rules; generation, probe, age_us, calls, slow,
--       left_us, owner, why
-- reply for each breaker twelve: the moment in µs, phase (0 closed, 1 open, 2 half-open, 3 ramp), generation, µs
--       left, failures, forced (0, 1 open, 2 closed), share in millionths, µs since it opened or -1, why, the
--       probe granted or 0, what changed (0, 1 opened, 2 closed, 3 ramp begun, 4 reset), and the probes that are
--       out ("left owner,..."); an error in place of the first when a key could not be used

local call, pcall = redis.call, redis.pcall
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format, match, gmatch = string.format, string.match, string.gmatch

local SECOND_US = 1000000
local FAILURES_US = 300 * SECOND_US
local SLICES, FAILING_MAX, PROBES_MAX, COUNT_MAX, BARE = 10, 16, 16, 1000000000, -1
local CLOSED, OPEN, HALF_OPEN, RAMP = 0, 1, 2, 3
local UNCHANGED, OPENED, SHUT, RAMPED, RESET = 0, 1, 2, 3, 4

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = call('TIME')
  now_us = time[1] * SECOND_US + time[2]
end

-- A stored whole number; nil for what cannot be one.
local function whole(text)
  if text and #text <= 16 and match(text, '^%d+$') then return tonumber(text) end
  return nil
end

local function digits(value) return format('%.0f', value) end

-- An instant in Unix seconds as µs; nil for what cannot be one.
local function instant(text)
  if text and #text <= 20 and match(text, '^%d+%.?%d*$') then return floor(tonumber(text) * SECOND_US + 0.5) end
  return nil
end

local keys, rules, asked, c -- of the breaker whose turn it is

local function joined(rows, write)
  local parts = {}
  for i, row in ipairs(rows) do parts[i] = write(row) end
  return table.concat(parts, ',')
end

local function failed(value) return type(value) == 'table' and value.err end

-- Read the state and bring it up to date; what that changes is written in the end. Returns an error, if any.
local function load()
  local failures, mark = pcall('GET', keys[1]), pcall('GET', keys[2])
  local trip = pcall('HMGET', keys[3], 'since', 'why', 'successes', 'ramp', 'probes')
  local counted = pcall('HMGET', keys[4], 'generation', 'last', 'run', 'slices', 'failing')
  local err = failed(failures) or failed(mark) or failed(trip) or failed(counted)
  if err then return err end

  c = {failures = min(COUNT_MAX, whole(failures) or 0), open_until = instant(mark) or 0, probes = {},
    slices = {}, failing = {}}

  local until_us = min(c.open_until, now_us + rules.cooldown_us)
  if until_us <= now_us then until_us = 0 end
  c.mark_dirty = until_us ~= c.open_until
  c.open_until = until_us

  local since = whole(trip[1])
  c.tripped = since ~= nil
  if c.tripped then
    c.opened, c.why, c.successes, c.ramp = min(since, now_us), trip[2] or '', whole(trip[3]) or 0, whole(trip[4]) or 0
    if c.opened ~= since or c.ramp > now_us then c.trip_dirty = true end
    c.ramp = min(c.ramp, now_us)
    for id, deadline, owner in gmatch(trip[5] or '', '(%d+) (%d+) ([^,%s]+)') do
      local n, stored = whole(id), whole(deadline)
      local deadline_us = stored and min(stored, now_us + rules.probe_us)
      if deadline_us ~= stored or not n or n == 0 then c.trip_dirty = true end
      if n and n > 0 and deadline_us and deadline_us > now_us and #c.probes < PROBES_MAX then
        c.probes[#c.probes + 1] = {n, deadline_us, owner}
      else
        c.trip_dirty = true
      end
    end
    if c.ramp > 0 and now_us - c.ramp >= rules.ramp_steps * rules.ramp_us then
      c.tripped, c.probes, c.trip_dirty = false, {}, true
    end
  end
  if not c.tripped then c.opened, c.why, c.successes, c.ramp = 0, '', 0, 0 end

  c.generation, c.last, c.run = whole(counted[1]) or 0, whole(counted[2]) or 0, whole(counted[3]) or 0
  if c.last > now_us or c.run > now_us then c.calls_dirty = true end
  c.last, c.run = min(c.last, now_us), min(c.run, now_us)
  local latest = floor(now_us / rules.slice_us)
  for n, calls, failures, slow in gmatch(counted[4] or '', '(%d+):(%d+):(%d+):(%d+)') do
    local row = {whole(n), whole(calls), whole(failures), whole(slow)}
    if row[1] and row[2] and row[3] and row[4] and latest - SLICES < row[1] and row[1] <= latest then
      c.slices[#c.slices + 1] = row
    else
      c.calls_dirty = true
    end
  end
  for last, owner in gmatch(counted[5] or '', '(%d+) ([^,%s]+)') do
    local stored = whole(last)
    if stored and #c.failing < FAILING_MAX then
      if stored > now_us then c.calls_dirty = true end
      c.failing[#c.failing + 1] = {owner, min(stored, now_us)}
    end
  end

  local change = pcall('GET', keys[5])
  change = string.gsub(type(change) == 'string' and change or '', '%c', ' ')
  local word, why = match(change, '^ *(%l+) ?(.-) *$')
  c.forced = word == 'open' and 1 or word == 'closed' and 2 or 0
  c.forced_why = c.forced > 0 and why or ''
end

local function hash(key, dirty, renewed, empty, ...)
  if dirty and empty then call('DEL', key) end
  if empty then return end
  if dirty then call('HSET', key, ...) end
  if renewed then call('PEXPIRE', key, digits(ceil(rules.memory_us / 1000))) end
end

local function save()
  if c.failures_dirty then
    if c.failures == 0 then
      call('DEL', keys[1])
    else
      call('SET', keys[1], digits(c.failures), 'PX', digits(FAILURES_US / 1000))
    end
  end
  if c.mark_dirty then
    if c.open_until == 0 then
      call('DEL', keys[2])
    else
      call('SET', keys[2], format('%.6f', c.open_until / SECOND_US), 'PX', digits(ceil((c.open_until - now_us) / 1000)))
    end
  end
  hash(keys[3], c.trip_dirty or c.trip_renewed, c.trip_renewed, not c.tripped,
    'since', digits(c.opened), 'why', c.why, 'successes', digits(c.successes), 'ramp', digits(c.ramp), 'probes',
    joined(c.probes, function(p) return digits(p[1]) .. ' ' .. digits(p[2]) .. ' ' .. p[3] end))
  hash(keys[4], c.calls_dirty or c.calls_renewed, c.calls_renewed,
    c.generation == 0 and c.last == 0 and #c.slices == 0 and #c.failing == 0,
    'generation', digits(c.generation), 'last', digits(c.last), 'run', digits(c.run),
    'slices', joined(c.slices, function(s)
      return format('%.0f:%.0f:%.0f:%.0f', s[1], s[2], s[3], s[4])
    end),
    'failing', joined(c.failing, function(f) return digits(f[2]) .. ' ' .. f[1] end))
end

local function current()
  return asked.generation == BARE or asked.generation == c.generation or c.generation == 0
end

local function half_open() return c.tripped and c.ramp == 0 end

local function counting() return c.open_until == 0 and not half_open() end

local function has_probe() return #c.probes < max(1, rules.probes - c.successes) end

-- Take a probe off the list; returns whether it was there.
local function taken(id)
  for i, probe in ipairs(c.probes) do
    if probe[1] == id then
      table.remove(c.probes, i)
      c.trip_dirty = true
      return true
    end
  end
  return false
end

local function next_generation() return max(now_us, c.generation + 1) end

local function trip()
  c.open_until, c.mark_dirty = now_us + rules.cooldown_us, true
  if not c.tripped then c.opened = now_us end
  c.tripped, c.why, c.successes, c.ramp, c.probes = true, asked.why, 0, 0, {}
  c.generation, c.slices, c.failing = next_generation(), {}, {}
  c.trip_renewed, c.calls_renewed = true, true
  return OPENED
end

local function close()
  local ramped = c.tripped and rules.ramp_steps > 0
  c.failures, c.failures_dirty, c.open_until, c.mark_dirty = 0, true, 0, true
  c.generation, c.slices, c.failing = next_generation(), {}, {}
  c.successes, c.probes = 0, {}
  c.trip_dirty, c.calls_renewed = true, true
  if ramped then
    c.ramp, c.trip_renewed = now_us, true
    return RAMPED
  end
  c.tripped, c.ramp, c.opened, c.why = false, 0, 0, ''
  return SHUT
end

local function add(calls, failures, slow)
  if rules.failure_ppm == 0 and rules.slow_ppm == 0 then return end
  local n, kept = floor(now_us / rules.slice_us), {}
  for _, row in ipairs(c.slices) do
    if row[1] == n then
      calls, failures, slow = calls + row[2], failures + row[3], slow + row[4]
    else
      kept[#kept + 1] = row
    end
  end
  kept[#kept + 1] = {n, min(COUNT_MAX, calls), min(COUNT_MAX, failures), min(COUNT_MAX, slow)}
  c.slices = kept
end

local function trouble()
  local kept = {}
  for _, row in ipairs(c.failing) do
    if row[1] ~= asked.owner then kept[#kept + 1] = row end
  end
  kept[#kept + 1] = {asked.owner, now_us}
  if #kept > FAILING_MAX then table.remove(kept, 1) end
  c.failing = kept
end

local function report()
  if asked.calls == 0 and asked.slow == 0 then return end
  add(asked.calls, 0, asked.slow)
  if asked.slow > 0 then trouble() end
  c.calls_renewed = true
end

local function count()
  local again = asked.generation ~= BARE and asked.age_us >= 0 and c.last > 0 and c.last < now_us - asked.age_us
  c.failures, c.failures_dirty = again and 1 or min(COUNT_MAX, c.failures + 1), true
  add(1, 1, 0)
  c.last = now_us
  if c.failures == 1 then c.run = now_us end
  trouble()
  c.calls_renewed = true
end

-- How many workers had trouble at that moment or later.
local function agreed(since_us)
  local found = 0
  for _, row in ipairs(c.failing) do
    if row[2] >= since_us then found = found + 1 end
  end
  return found
end

local function in_a_row()
  if c.ramp > 0 then
    return c.failures >= min(rules.threshold > 0 and rules.threshold or rules.probes, rules.probes)
  end
  return rules.threshold > 0 and c.failures >= rules.threshold and agreed(c.run) >= rules.quorum
end

local function too_many()
  if rules.failure_ppm == 0 and rules.slow_ppm == 0 then return false end
  local calls, failures, slow = 0, 0, 0
  for _, row in ipairs(c.slices) do
    calls, failures, slow = calls + row[2], failures + row[3], slow + row[4]
  end
  if calls < rules.minimum_calls or agreed(now_us - rules.window_us + 1) < rules.quorum then return false end
  return rules.failure_ppm > 0 and failures * 1000000 >= rules.failure_ppm * calls
    or rules.slow_ppm > 0 and slow * 1000000 >= rules.slow_ppm * calls
end

local acts = {}

function acts.look()
  if not (current() and counting() and (asked.calls > 0 or asked.slow > 0)) then return UNCHANGED, 0 end
  report()
  if c.forced == 0 and too_many() then return trip(), 0 end
  return UNCHANGED, 0
end

function acts.admit()
  if c.forced > 0 or c.open_until > 0 or not half_open() or not has_probe() then return UNCHANGED, 0 end
  c.probes[#c.probes + 1] = {asked.probe, now_us + rules.probe_us, asked.owner}
  c.trip_renewed, c.calls_renewed = true, true
  return UNCHANGED, asked.probe
end

function acts.fail()
  if not current() then return UNCHANGED, 0 end
  local probing = c.open_until == 0 and half_open()
  if asked.probe > 0 or asked.generation ~= BARE and probing then
    local known = taken(asked.probe) and c.open_until == 0
    if c.forced > 0 or not known then return UNCHANGED, 0 end
    count()
    return trip(), 0
  end
  local counts = counting()
  if counts then report() end
  count()
  if c.forced == 0 and (probing or counts and (in_a_row() or too_many())) then return trip(), 0 end
  return UNCHANGED, 0
end

function acts.succeed()
  if asked.generation == BARE then
    if c.open_until > 0 or half_open() then return close(), 0 end
  elseif not current() then
    return UNCHANGED, 0
  elseif asked.probe > 0 then
    if c.open_until > 0 or not taken(asked.probe) then return UNCHANGED, 0 end
    c.successes = c.successes + 1
    if c.successes >= rules.probes then return close(), 0 end
    return UNCHANGED, 0
  end
  if not counting() then return UNCHANGED, 0 end
  if c.failures > 0 then c.failures, c.failures_dirty = 0, true end
  return acts.look()
end

function acts.give_back()
  taken(asked.probe)
  return UNCHANGED, 0
end

function acts.reset()
  local generation = next_generation()
  c.failures, c.failures_dirty, c.open_until, c.mark_dirty = 0, true, 0, true
  c.tripped, c.opened, c.why, c.successes, c.ramp, c.probes, c.trip_dirty = false, 0, '', 0, 0, {}, true
  c.generation, c.last, c.run, c.slices, c.failing, c.calls_renewed = generation, 0, 0, {}, {}, true
  return RESET, 0
end

-- Not if it has changed since that time began; and where several have to agree, who reports is one of them.
function acts.open()
  local left_us = min(max(1, asked.left_us), rules.cooldown_us)
  local began_us = now_us - (rules.cooldown_us - left_us)
  if c.open_until > 0 or c.forced > 0 or c.generation > began_us then return UNCHANGED, 0 end
  trouble()
  c.calls_renewed = true
  if agreed(began_us) < rules.quorum then return UNCHANGED, 0 end
  trip()
  c.open_until = now_us + left_us
  c.opened = now_us - max(0, asked.age_us)
  return OPENED, 0
end

local function phase()
  if c.forced > 0 then return c.forced == 1 and OPEN or CLOSED end
  if c.open_until > 0 then return OPEN end
  if half_open() then return HALF_OPEN end
  return c.ramp > 0 and RAMP or CLOSED
end

local function left(phase)
  if phase == OPEN then return c.forced > 0 and rules.cooldown_us or c.open_until - now_us end
  if phase == HALF_OPEN and not has_probe() then
    local first = c.probes[1][2]
    for _, probe in ipairs(c.probes) do first = min(first, probe[2]) end
    return first - now_us
  end
  if phase == RAMP then return rules.ramp_us - (now_us - c.ramp) % rules.ramp_us end
  return 0
end

local function share(phase)
  if phase == CLOSED then return 1000000 end
  if phase ~= RAMP then return 0 end
  return max(1, floor((floor((now_us - c.ramp) / rules.ramp_us) + 1) * 1000000 / (rules.ramp_steps + 1)))
end

local NUMBERS = {'threshold', 'cooldown_us', 'failure_ppm', 'slow_ppm', 'window_us', 'minimum_calls', 'quorum',
  'probes', 'probe_us', 'ramp_steps', 'ramp_us'}
local TOLD = {'generation', 'probe', 'age_us', 'calls', 'slow', 'left_us'}

local reply = {}
for turn = 0, #KEYS / 5 - 1 do
  local k, a, r = turn * 5, turn * 20 + 2, turn * 12
  keys, rules, asked = {KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5]}, {}, {}
  for i, name in ipairs(NUMBERS) do rules[name] = tonumber(ARGV[a + i]) end
  for i, name in ipairs(TOLD) do asked[name] = tonumber(ARGV[a + 11 + i]) end
  asked.owner, asked.why = ARGV[a + 18], ARGV[a + 19]
  rules.slice_us = max(1, floor(rules.window_us / SLICES))
  rules.memory_us = max(300 * SECOND_US, max(rules.cooldown_us, rules.probe_us) + 60 * SECOND_US, rules.window_us,
    rules.ramp_steps * rules.ramp_us)
  local err = load()
  if err then
    reply[r + 1] = err
    for i = 2, 12 do reply[r + i] = 0 end
  else
    local change, probe = acts[ARGV[a]]()
    save()
    local now = phase()
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = now_us, now, c.generation, left(now)
    reply[r + 5], reply[r + 6], reply[r + 7] = c.failures, c.forced, share(now)
    reply[r + 8], reply[r + 9] = c.tripped and now_us - c.opened or -1, c.forced > 0 and c.forced_why or c.why
    reply[r + 10], reply[r + 11] = probe, change
    reply[r + 12] = joined(c.probes, function(p) return digits(p[2] - now_us) .. ' ' .. p[3] end)
  end
end
return reply
