-- Hands out permits for calls in flight, each with an owner and a deadline. Twin of holding.py and claims.py.
--
-- KEYS  for each operation: a sorted set of permits (`id owner`) by their deadline in µs; a sorted set of claims of
--       those who wait (`since owner`, in µs) by their end in µs
-- ARGV  1: now in µs, or 0 for the server's clock;
--       then for each operation: take, wait (take or claim), last (take or withdraw the claim), give or renew; the
--       permit (to give: one or more, a line each); how many there are; how long one holds in µs
-- reply for each operation: 1 if it was done or 0; for a take that was refused the µs until the first deadline,
--       else 0; for one that waits the µs after which to ask again, 0 if there is no hurry. An error in place of
--       the first when a key could not be used, then 0 or 1 for which

local life_us, due_us, claims_max = 250000, 200000, 64
local pace_us_min, pace_part = 2000, 16
local key_ms = 10000

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local function whole(number) return string.format('%.0f', number) end
local now = whole(now_us)

-- Strike the permits whose time is over; one that ends later than any can (a clock was set back) ends in time.
local function swept(key, hold_us)
  local struck = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(struck) == 'table' then return struck.err end
  local latest = whole(now_us + hold_us)
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
    redis.call('ZADD', key, latest, permit)
  end
end

local function held(key, permit, hold_us)
  redis.call('ZADD', key, whole(now_us + hold_us), permit)
  redis.call('PEXPIRE', key, whole(math.ceil(hold_us / 1000))) -- nobody's deadline is later
  return 1, 0, 0
end

-- Read a claim, and strike it if it has ended; what lies ahead (a clock was set back) begins now.
local function claim_of(key, member, ends_us)
  local since, owner = string.match(member, '^(%d+) (.+)$')
  if not since or ends_us <= now_us then
    redis.call('ZREM', key, member)
    return nil
  end
  local since_us = tonumber(since)
  local claim = {since_us = math.min(since_us, now_us), ends_us = math.min(ends_us, now_us + life_us), owner = owner}
  claim.member = whole(claim.since_us) .. ' ' .. owner
  if claim.since_us < since_us or claim.ends_us < ends_us then
    redis.call('ZREM', key, member)
    redis.call('ZADD', key, whole(claim.ends_us), claim.member)
  end
  return claim
end

-- The claims of others, and one's own if there is one.
local function claims_at(key, owner)
  local found = redis.pcall('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, claims_max)
  if found.err then return nil, nil, found.err end
  local others, own = {}, nil
  for i = 1, #found, 2 do
    local claim = claim_of(key, found[i], tonumber(found[i + 1]))
    if claim and claim.owner == owner then own = claim elseif claim then others[#others + 1] = claim end
  end
  return others, own
end

-- How many others are due who came before.
local function ahead_of(others, owner, since_us)
  local ahead = 0
  for _, claim in ipairs(others) do
    local is_due = claim.ends_us - life_us - claim.since_us >= due_us
    local before = claim.since_us < since_us or claim.since_us == since_us and claim.owner < owner
    if is_due and before then ahead = ahead + 1 end
  end
  return ahead
end

-- When to look again, for one whose turn it is or who gives way; the others have time.
local function pace_us(key, owner, others, ahead, since_us, most, hold_us)
  local out = redis.call('ZCARD', key)
  local last = {}
  if out > 0 then
    last = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', out - 1, 1)
  end
  if ahead == 0 then
    local elsewhere = last[1] and (string.match(last[1], '^[^ ]* (.*)$') or '') ~= owner
    if now_us - since_us < due_us or not (elsewhere or #others > 0) then return 0 end
  end
  local taken_us = last[2] and now_us + hold_us - last[2] or 0
  return math.max(pace_us_min, math.floor(taken_us / pace_part)) * (1 + math.floor(ahead / most))
end

local function take(key, waiting, verb, permit, most, hold_us)
  local owner = string.match(permit, '^[^ ]* (.*)$')
  local others, own, trouble = claims_at(waiting, owner)
  if trouble then return trouble, 1, 0 end
  local waits = verb ~= 'take'
  local since_us = waits and own and own.since_us or now_us
  local ahead = ahead_of(others, owner, since_us)
  redis.call('ZREM', key, permit) -- who asks again may have been granted it, and not have heard
  local granted = redis.call('ZCARD', key) + ahead < most
  if own and waits and (granted or verb == 'last') then redis.call('ZREM', waiting, own.member) end
  if granted then return held(key, permit, hold_us) end
  local first = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local wait_us = first[2] and math.floor(first[2]) - now_us or hold_us
  if verb ~= 'wait' then return 0, wait_us, 0 end
  if #others < claims_max then
    redis.call('ZADD', waiting, whole(now_us + life_us), whole(since_us) .. ' ' .. owner)
    redis.call('PEXPIRE', waiting, key_ms)
  end
  return 0, wait_us, pace_us(key, owner, others, ahead, since_us, most, hold_us)
end

local function done(key, waiting, verb, permit, most, hold_us)
  local trouble = swept(key, hold_us)
  if trouble then return trouble, 0, 0 end
  if verb == 'give' then
    local given = 0
    for one in string.gmatch(permit, '[^\n]+') do given = given + redis.call('ZREM', key, one) end
    return math.min(1, given), 0, 0
  end
  if verb == 'renew' then
    if redis.call('ZREM', key, permit) == 0 then return 0, 0, 0 end
    return held(key, permit, hold_us)
  end
  return take(key, waiting, verb, permit, most, hold_us)
end

local reply = {}
for i = 1, #KEYS / 2 do
  local a = 4 * i - 2
  local most, hold_us = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] =
    done(KEYS[2 * i - 1], KEYS[2 * i], ARGV[a], ARGV[a + 1], most, hold_us)
end
return reply
