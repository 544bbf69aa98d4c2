-- Applies one request to each of several circuits, with the same algorithm as state_machine.py,
-- result_counts.py and normalization.py.
--
-- KEYS  five for each circuit: the number of failures (a string), the end of the cooldown (a string, Unix
--       seconds), the state of a tripped circuit (a hash), the counts (a hash), and the operator's record;
--       the part of the name before ":failures" is written to the change log
-- ARGV  1: now in µs, or 0 for the server's clock; then 27 for each circuit: the command (read, admit, fail, succeed,
--       release, reset, report_open, report_failures); the 14 numbers of its rules; generation, probe, succeeded_us,
--       calls, slow, remaining_us, age_us, cooldown_us, total, streak, owner, reason
-- reply 18 for each circuit: the time in µs, phase (0 closed, 1 open, 2 half-open, 3 ramp), generation,
--       remaining µs, failures, forced (0 no, 1 open, 2 closed), share in millionths, µs since it opened or
--       -1, its last cooldown in µs, the failures of this owner, the calls, failures and slow calls of the
--       window, µs since the window began or -1, reason, the granted probe or 0, the change (0 none, 1
--       opened, 2 closed, 3 ramp started, 4 reset), and the running probes ("remaining owner,..."); if a key
--       holds another type, the error text replaces the first value

local call, pcall = redis.call, redis.pcall
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format, match, gmatch = string.format, string.match, string.gmatch

local SECOND_US = 1000000
local FAILURES_TTL_US, TTL_MARGIN_US = 300 * SECOND_US, 60 * SECOND_US
local SLICES, FAILING_WORKERS_MAX, PROBES_MAX, COUNT_MAX, NO_ADMISSION = 10, 16, 16, 1000000000, -1
local CLOSED, OPEN, HALF_OPEN, RAMP = 0, 1, 2, 3
local CHANGE_NONE, CHANGE_OPENED, CHANGE_CLOSED, CHANGE_RAMP, CHANGE_RESET = 0, 1, 2, 3, 4

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = call('TIME')
  now_us = time[1] * SECOND_US + time[2]
end

local KEY_COUNT, ARG_COUNT, REPLY_SIZE = 5, 27, 18
local circuit_count = floor(#KEYS / KEY_COUNT)

-- Most reads concern circuits without any state. They are answered before the functions below are defined, each of
-- which costs as much as a call.
local function are_plain_reads()
  for a = 2, #ARGV, ARG_COUNT do
    if ARGV[a] ~= 'read' or ARGV[a + 18] ~= '0' or ARGV[a + 19] ~= '0' then return false end -- calls, slow
  end
  return true
end

if are_plain_reads() and call('EXISTS', unpack(KEYS, 1, circuit_count * KEY_COUNT)) == 0 then
  local reply = {}
  for turn = 0, circuit_count - 1 do
    local empty = {now_us, CLOSED, 0, 0, 0, 0, 1000000, -1, 0, 0, 0, 0, 0, -1, '', 0, CHANGE_NONE, ''}
    for i = 1, REPLY_SIZE do reply[turn * REPLY_SIZE + i] = empty[i] end
  end
  return reply
end

-- Parse a stored integer; nil if the text is not one.
local function parse_integer(text)
  if text and #text <= 16 and match(text, '^%d+$') then return tonumber(text) end
  return nil
end

local function format_integer(value) return format('%.0f', value) end

-- Parse a time in Unix seconds as µs; nil if the text is not one.
local function parse_time(text)
  if text and #text <= 20 and match(text, '^%d+%.?%d*$') then return floor(tonumber(text) * SECOND_US + 0.5) end
  return nil
end

local keys, rules, request, c -- of the circuit that the loop at the end is processing

local function join(rows, write)
  local parts = {}
  for i, row in ipairs(rows) do parts[i] = write(row) end
  return table.concat(parts, ',')
end

local function error_of(value) return type(value) == 'table' and value.err end

-- Read the state and normalize it; save() writes the changes. Returns an error text, if any.
local function load()
  if call('EXISTS', keys[1], keys[2], keys[3], keys[4], keys[5]) == 0 then
    c = {failures = 0, open_until = 0, probes = {}, slices = {}, failing = {}, tripped = false, opened = 0, reason = '',
      successes = 0, ramp_start = 0, cooldown = 0, generation = 0, last_failure = 0, streak_start = 0, forced = 0,
      forced_reason = ''}
    return
  end
  local failures, mark = pcall('GET', keys[1]), pcall('GET', keys[2])
  local trip = pcall('HMGET', keys[3], 'since', 'reason', 'successes', 'ramp', 'probes', 'cooldown')
  local counted = pcall('HMGET', keys[4], 'generation', 'last', 'run', 'slices', 'failing')
  local err = error_of(failures) or error_of(mark) or error_of(trip) or error_of(counted)
  if err then return err end

  c = {failures = min(COUNT_MAX, parse_integer(failures) or 0), open_until = parse_time(mark) or 0, probes = {},
    slices = {}, failing = {}}

  local until_us = min(c.open_until, now_us + rules.longest_us)
  if until_us <= now_us then until_us = 0 end
  c.mark_dirty = until_us ~= c.open_until
  c.open_until = until_us

  local since = parse_integer(trip[1])
  c.tripped = since ~= nil
  if c.tripped then
    c.opened, c.reason = min(since, now_us), trip[2] or ''
    c.successes, c.ramp_start = parse_integer(trip[3]) or 0, parse_integer(trip[4]) or 0
    c.cooldown = min(parse_integer(trip[6]) or 0, rules.longest_us)
    if c.opened ~= since or c.ramp_start > now_us then c.trip_dirty = true end
    c.ramp_start = min(c.ramp_start, now_us)
    for id, deadline, owner in gmatch(trip[5] or '', '(%d+) (%d+) ([^,%s]+)') do
      local n, stored = parse_integer(id), parse_integer(deadline)
      local deadline_us = stored and min(stored, now_us + rules.probe_us)
      if deadline_us ~= stored or not n or n == 0 then c.trip_dirty = true end
      if n and n > 0 and deadline_us and deadline_us > now_us and #c.probes < PROBES_MAX then
        c.probes[#c.probes + 1] = {n, deadline_us, owner}
      else
        c.trip_dirty = true
      end
    end
    if c.ramp_start > 0 and now_us - c.ramp_start >= rules.ramp_steps * rules.ramp_step_us then
      c.tripped, c.probes, c.trip_dirty = false, {}, true
    end
  end
  if not c.tripped then c.opened, c.reason, c.successes, c.ramp_start, c.cooldown = 0, '', 0, 0, 0 end

  c.generation = parse_integer(counted[1]) or 0
  c.last_failure, c.streak_start = parse_integer(counted[2]) or 0, parse_integer(counted[3]) or 0
  if c.last_failure > now_us or c.streak_start > now_us then c.calls_dirty = true end
  c.last_failure, c.streak_start = min(c.last_failure, now_us), min(c.streak_start, now_us)
  local latest = floor(now_us / rules.slice_us)
  for n, calls, failures, slow in gmatch(counted[4] or '', '(%d+):(%d+):(%d+):(%d+)') do
    local row = {parse_integer(n), parse_integer(calls), parse_integer(failures), parse_integer(slow)}
    if row[1] and row[2] and row[3] and row[4] and latest - SLICES < row[1] and row[1] <= latest then
      c.slices[#c.slices + 1] = row
    else
      c.calls_dirty = true
    end
  end
  for last, total, owner in gmatch(counted[5] or '', '(%d+) (%d+) ([^,%s]+)') do
    local stored, failures = parse_integer(last), parse_integer(total)
    if stored and failures and #c.failing < FAILING_WORKERS_MAX then
      if stored > now_us then c.calls_dirty = true end
      c.failing[#c.failing + 1] = {owner, min(stored, now_us), min(COUNT_MAX, failures)}
    end
  end

  local change = pcall('GET', keys[5])
  change = string.gsub(type(change) == 'string' and change or '', '%c', ' ')
  local word, reason = match(change, '^ *(%l+) ?(.-) *$')
  c.forced = word == 'open' and 1 or word == 'closed' and 2 or 0
  c.forced_reason = c.forced > 0 and reason or ''
end

local function hash(key, dirty, renewed, empty, ...)
  if dirty and empty then call('DEL', key) end
  if empty then return end
  if dirty then call('HSET', key, ...) end
  local ttl_us = c.tripped and max(rules.ttl_us, c.cooldown + TTL_MARGIN_US) or rules.ttl_us
  if renewed then call('PEXPIRE', key, format_integer(ceil(ttl_us / 1000))) end
end

local function save()
  if c.failures_dirty then
    if c.failures == 0 then
      call('DEL', keys[1])
    else
      call('SET', keys[1], format_integer(c.failures), 'PX', format_integer(FAILURES_TTL_US / 1000))
    end
  end
  if c.mark_dirty then
    if c.open_until == 0 then
      call('DEL', keys[2])
    else
      local ttl_ms = ceil((c.open_until - now_us) / 1000)
      call('SET', keys[2], format('%.6f', c.open_until / SECOND_US), 'PX', format_integer(ttl_ms))
    end
  end
  hash(keys[3], c.trip_dirty or c.trip_renewed, c.trip_renewed, not c.tripped,
    'since', format_integer(c.opened), 'reason', c.reason, 'successes', format_integer(c.successes),
    'ramp', format_integer(c.ramp_start), 'cooldown', format_integer(c.cooldown), 'probes',
    join(c.probes, function(p) return format_integer(p[1]) .. ' ' .. format_integer(p[2]) .. ' ' .. p[3] end))
  hash(keys[4], c.calls_dirty or c.calls_renewed, c.calls_renewed,
    c.generation == 0 and c.last_failure == 0 and #c.slices == 0 and #c.failing == 0,
    'generation', format_integer(c.generation), 'last', format_integer(c.last_failure),
    'run', format_integer(c.streak_start),
    'slices', join(c.slices, function(s)
      return format('%.0f:%.0f:%.0f:%.0f', s[1], s[2], s[3], s[4])
    end),
    'failing', join(c.failing, function(f)
      return format_integer(f[2]) .. ' ' .. format_integer(f[3]) .. ' ' .. f[1]
    end))
end

local function is_current()
  return request.generation == NO_ADMISSION or request.generation == c.generation or c.generation == 0
end

local function is_half_open() return c.tripped and c.ramp_start == 0 end

local function counts_results() return c.open_until == 0 and not is_half_open() end

local function has_free_probe()
  return #c.probes < min(rules.probes_at_once, max(1, rules.probes - c.successes))
end

-- Remove a probe; returns whether it was running.
local function remove_probe(id)
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

-- Return the cooldown of a circuit that opens now: longer than the last one if it has not closed since.
local function next_cooldown()
  if not c.tripped then return rules.cooldown_us end
  return min(rules.longest_us, floor(max(c.cooldown, rules.cooldown_us) * rules.cooldown_permille / 1000))
end

local function trip()
  c.cooldown = next_cooldown()
  c.open_until, c.mark_dirty = now_us + c.cooldown, true
  if not c.tripped then c.opened = now_us end
  c.tripped, c.reason, c.successes, c.ramp_start, c.probes = true, request.reason, 0, 0, {}
  c.generation, c.slices, c.failing = next_generation(), {}, {}
  c.trip_renewed, c.calls_renewed = true, true
  return CHANGE_OPENED
end

local function close()
  local ramped = c.tripped and rules.ramp_steps > 0
  c.failures, c.failures_dirty, c.open_until, c.mark_dirty = 0, true, 0, true
  c.generation, c.slices, c.failing = next_generation(), {}, {}
  c.successes, c.probes = 0, {}
  c.trip_dirty, c.calls_renewed = true, true
  if ramped then
    c.ramp_start, c.trip_renewed = now_us, true
    return CHANGE_RAMP
  end
  c.tripped, c.ramp_start, c.opened, c.reason, c.cooldown = false, 0, 0, '', 0
  return CHANGE_CLOSED
end

local function add_to_window(calls, failures, slow)
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

local function own_failures()
  for _, row in ipairs(c.failing) do
    if row[1] == request.owner then return row[3] end
  end
  return 0
end

local function add_failing_worker(failures)
  local kept, total = {}, min(COUNT_MAX, own_failures() + failures)
  for _, row in ipairs(c.failing) do
    if row[1] ~= request.owner then kept[#kept + 1] = row end
  end
  kept[#kept + 1] = {request.owner, now_us, total}
  if #kept > FAILING_WORKERS_MAX then table.remove(kept, 1) end
  c.failing = kept
end

local function count_report()
  if request.calls == 0 and request.slow == 0 then return end
  add_to_window(request.calls, 0, request.slow)
  if request.slow > 0 then add_failing_worker(0) end
  c.calls_renewed = true
end

-- Count failures of one worker, of which the last `streak` are in a row. They start a new streak if their worker
-- succeeded after the previous failure.
local function count_failures(count, streak)
  local restarts = request.generation ~= NO_ADMISSION
    and c.last_failure > 0 and c.last_failure < request.succeeded_us and request.succeeded_us <= now_us
  if restarts or c.failures == 0 then c.streak_start = now_us end
  c.failures, c.failures_dirty = restarts and streak or min(COUNT_MAX, c.failures + streak), true
  add_to_window(count, count, 0)
  if streak > 0 then c.last_failure = now_us end
  add_failing_worker(count)
  c.calls_renewed = true
end

-- Return how many workers failed at since_us or later.
local function failing_worker_count(since_us)
  local count = 0
  for _, row in ipairs(c.failing) do
    if row[2] >= since_us then count = count + 1 end
  end
  return count
end

local function reaches_threshold()
  if c.ramp_start > 0 then
    return c.failures >= min(rules.threshold > 0 and rules.threshold or rules.probes, rules.probes)
  end
  return rules.threshold > 0 and c.failures >= rules.threshold
    and failing_worker_count(c.streak_start) >= rules.quorum
end

-- Return the calls, failures and slow calls of the window, and the number of its oldest slice or -1.
local function window_counts()
  local calls, failures, slow, first = 0, 0, 0, -1
  for _, row in ipairs(c.slices) do
    calls, failures, slow = calls + row[2], failures + row[3], slow + row[4]
    first = first < 0 and row[1] or min(first, row[1])
  end
  return calls, failures, slow, first
end

local function exceeds_ratio()
  if rules.failure_ppm == 0 and rules.slow_ppm == 0 then return false end
  local calls, failures, slow = window_counts()
  if calls < rules.minimum_calls then return false end
  if failing_worker_count(now_us - rules.window_us + 1) < rules.quorum then return false end
  return rules.failure_ppm > 0 and failures * 1000000 >= rules.failure_ppm * calls
    or rules.slow_ppm > 0 and slow * 1000000 >= rules.slow_ppm * calls
end

local function must_open() return reaches_threshold() or exceeds_ratio() end

local commands = {}

function commands.read()
  if not (is_current() and counts_results() and (request.calls > 0 or request.slow > 0)) then return CHANGE_NONE, 0 end
  count_report()
  if c.forced == 0 and exceeds_ratio() then return trip(), 0 end
  return CHANGE_NONE, 0
end

function commands.admit()
  if c.forced > 0 or c.open_until > 0 or not is_half_open() or not has_free_probe() then return CHANGE_NONE, 0 end
  c.probes[#c.probes + 1] = {request.probe, now_us + rules.probe_us, request.owner}
  c.trip_renewed, c.calls_renewed = true, true
  return CHANGE_NONE, request.probe
end

function commands.fail()
  if not is_current() then return CHANGE_NONE, 0 end
  local probing = c.open_until == 0 and is_half_open()
  if request.probe > 0 or request.generation ~= NO_ADMISSION and probing then
    local running = remove_probe(request.probe) and c.open_until == 0
    if c.forced > 0 or not running then return CHANGE_NONE, 0 end
    count_failures(1, 1)
    return trip(), 0
  end
  local counts = counts_results()
  if counts then count_report() end
  count_failures(1, 1)
  if c.forced == 0 and (probing or counts and must_open()) then return trip(), 0 end
  return CHANGE_NONE, 0
end

function commands.succeed()
  if request.generation == NO_ADMISSION then
    if c.open_until > 0 or is_half_open() then return close(), 0 end
  elseif not is_current() then
    return CHANGE_NONE, 0
  elseif request.probe > 0 then
    if c.open_until > 0 or not remove_probe(request.probe) then return CHANGE_NONE, 0 end
    c.successes = c.successes + 1
    if c.successes >= rules.probes then return close(), 0 end
    return CHANGE_NONE, 0
  end
  if not counts_results() then return CHANGE_NONE, 0 end
  if c.failures > 0 then c.failures, c.failures_dirty = 0, true end
  return commands.read()
end

function commands.release()
  remove_probe(request.probe)
  return CHANGE_NONE, 0
end

function commands.reset()
  local generation = next_generation()
  c.failures, c.failures_dirty, c.open_until, c.mark_dirty = 0, true, 0, true
  c.tripped, c.opened, c.reason, c.successes, c.ramp_start, c.probes, c.trip_dirty = false, 0, '', 0, 0, {}, true
  c.cooldown = 0
  c.generation, c.last_failure, c.streak_start, c.slices, c.failing, c.calls_renewed = generation, 0, 0, {}, {}, true
  return CHANGE_RESET, 0
end

-- Open the circuit for the rest of a cooldown that a worker began during an outage, unless the circuit has
-- changed since that cooldown began. With a quorum, the reporting worker counts as one of the failing ones.
function commands.report_open()
  local cooldown_us = min(request.cooldown_us > 0 and request.cooldown_us or rules.cooldown_us, rules.longest_us)
  local remaining_us = min(max(1, request.remaining_us), cooldown_us)
  local started_us = now_us - (cooldown_us - remaining_us)
  if c.open_until > 0 or c.forced > 0 or c.generation > started_us then return CHANGE_NONE, 0 end
  add_failing_worker(0)
  c.calls_renewed = true
  if failing_worker_count(started_us) < rules.quorum then return CHANGE_NONE, 0 end
  trip()
  c.open_until = now_us + remaining_us
  c.opened = now_us - max(0, request.age_us)
  c.cooldown = cooldown_us
  return CHANGE_OPENED, 0
end

-- Count the failures of a worker during an outage of the store, except those that reached the store.
function commands.report_failures()
  local missing = request.total - own_failures()
  if missing <= 0 or not (is_current() and counts_results()) then return CHANGE_NONE, 0 end
  count_failures(missing, min(missing, request.streak))
  if c.forced == 0 and must_open() then return trip(), 0 end
  return CHANGE_NONE, 0
end

local function phase()
  if c.forced > 0 then return c.forced == 1 and OPEN or CLOSED end
  if c.open_until > 0 then return OPEN end
  if is_half_open() then return HALF_OPEN end
  return c.ramp_start > 0 and RAMP or CLOSED
end

local function remaining(phase)
  if phase == OPEN then return c.forced > 0 and rules.cooldown_us or c.open_until - now_us end
  if phase == HALF_OPEN and not has_free_probe() then
    local first = c.probes[1][2]
    for _, probe in ipairs(c.probes) do first = min(first, probe[2]) end
    return first - now_us
  end
  if phase == RAMP then return rules.ramp_step_us - (now_us - c.ramp_start) % rules.ramp_step_us end
  return 0
end

local function share(phase)
  if phase == CLOSED then return 1000000 end
  if phase ~= RAMP then return 0 end
  local steps = floor((now_us - c.ramp_start) / rules.ramp_step_us) + 1
  return max(1, floor(steps * 1000000 / (rules.ramp_steps + 1)))
end

-- Whether other workers must read the circuit again; see `changed_name` in operation.py.
local function is_notable(command, change, phase)
  if change ~= CHANGE_NONE then return true end
  if phase == HALF_OPEN and request.probe > 0 and (command == 'succeed' or command == 'release') then return true end
  if c.failures == 0 then return false end
  if command == 'report_failures' then return true end
  return command == 'fail' and (phase == RAMP or c.failures == floor((rules.threshold + 1) / 2))
end

local NUMBERS = {'threshold', 'cooldown_us', 'cooldown_permille', 'cooldown_max_us', 'failure_ppm', 'slow_ppm',
  'window_us', 'minimum_calls', 'quorum', 'probes', 'probes_at_once', 'probe_us', 'ramp_steps', 'ramp_step_us'}
local ARGUMENTS = {'generation', 'probe', 'succeeded_us', 'calls', 'slow', 'remaining_us', 'age_us', 'cooldown_us',
  'total', 'streak'}

local reply = {}
for turn = 0, circuit_count - 1 do
  local k, a, r = turn * KEY_COUNT, turn * ARG_COUNT + 2, turn * REPLY_SIZE
  keys, rules, request = {KEYS[k + 1], KEYS[k + 2], KEYS[k + 3], KEYS[k + 4], KEYS[k + 5]}, {}, {}
  for i, name in ipairs(NUMBERS) do rules[name] = tonumber(ARGV[a + i]) end
  for i, name in ipairs(ARGUMENTS) do request[name] = tonumber(ARGV[a + #NUMBERS + i]) end
  request.owner, request.reason = ARGV[a + ARG_COUNT - 2], ARGV[a + ARG_COUNT - 1]
  rules.slice_us = max(1, floor(rules.window_us / SLICES))
  rules.longest_us = max(rules.cooldown_us, rules.cooldown_max_us)
  rules.ttl_us = max(300 * SECOND_US, max(rules.cooldown_us, rules.probe_us) + TTL_MARGIN_US, rules.window_us,
    rules.ramp_steps * rules.ramp_step_us)
  local err = load()
  if err then
    reply[r + 1] = err
    for i = 2, REPLY_SIZE do reply[r + i] = 0 end
  else
    local change, probe = commands[ARGV[a]]()
    save()
    local now = phase()
    if is_notable(ARGV[a], change, now) then note_change(string.sub(keys[1], 1, -10), now_us) end
    local calls, failed, slow, first = window_counts()
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = now_us, now, c.generation, remaining(now)
    reply[r + 5], reply[r + 6], reply[r + 7] = c.failures, c.forced, share(now)
    reply[r + 8], reply[r + 9], reply[r + 10] = c.tripped and now_us - c.opened or -1, c.cooldown, own_failures()
    reply[r + 11], reply[r + 12], reply[r + 13] = calls, failed, slow
    reply[r + 14] = first >= 0 and now_us - first * rules.slice_us or -1
    reply[r + 15] = c.forced > 0 and c.forced_reason or c.reason
    reply[r + 16], reply[r + 17] = probe, change
    reply[r + 18] = join(c.probes, function(p) return format_integer(p[2] - now_us) .. ' ' .. p[3] end)
  end
end
return reply
