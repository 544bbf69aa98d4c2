-- Helpers of the scripts that acquire permits: the time, expired permits, and the claims of waiting processes.
-- Lua version of parts of operation.py and fairness_queue.py.
--
-- ARGV  1: now in µs, or 0 for the server's clock

local claim_ttl_us, due_us, claims_max = 250000, 200000, 64

local now_us = tonumber(ARGV[1])
if now_us == 0 then
  local time = redis.call('TIME')
  now_us = time[1] * 1000000 + time[2]
end
local function integer_text(number) return string.format('%.0f', number) end
local now = integer_text(now_us)

-- Removes expired permits, and shortens a permit that ends later than any can, after the clock was set back.
local function remove_expired(key, ttl_us)
  local removed = redis.pcall('ZREMRANGEBYSCORE', key, '-inf', now)
  if type(removed) == 'table' then return removed.err end
  local latest = integer_text(now_us + ttl_us)
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. latest, '+inf')) do
    redis.call('ZADD', key, latest, permit)
  end
end

local function add_permit(key, permit, ttl_us)
  redis.call('ZADD', key, integer_text(now_us + ttl_us), permit)
  redis.call('PEXPIRE', key, integer_text(math.ceil(ttl_us / 1000))) -- no permit has a later deadline
  return 1, 0, 0
end

-- Removes some permits, one per line; returns how many there were.
local function remove_permits(key, permits)
  local removed = 0
  for permit in string.gmatch(permits, '[^\n]+') do removed = removed + redis.call('ZREM', key, permit) end
  return removed
end

-- The first of some permits, one per line, and its owner.
local function first_permit(permits)
  return string.match(permits, '^([^\n]*)'), string.match(permits, '^[^ \n]* ([^\n]*)')
end

-- Reads a claim, and removes it if it has expired; after the clock was set back a claim in the future starts now.
local function read_claim(key, member, ends_us)
  local since, owner = string.match(member, '^(%d+) (.+)$')
  if not since or ends_us <= now_us then
    redis.call('ZREM', key, member)
    return nil
  end
  local since_us = tonumber(since)
  local claim = {
    since_us = math.min(since_us, now_us), ends_us = math.min(ends_us, now_us + claim_ttl_us), owner = owner}
  claim.member = integer_text(claim.since_us) .. ' ' .. owner
  if claim.since_us < since_us or claim.ends_us < ends_us then
    redis.call('ZREM', key, member)
    redis.call('ZADD', key, integer_text(claim.ends_us), claim.member)
  end
  return claim
end

-- The claims of the other owners, this owner's claim if it has one, and the error of an unusable key.
local function read_claims(key, owner)
  local members = redis.pcall('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, claims_max)
  if members.err then return nil, nil, members.err end
  local others, own = {}, nil
  for i = 1, #members, 2 do
    local claim = read_claim(key, members[i], tonumber(members[i + 1]))
    if claim and claim.owner == owner then own = claim elseif claim then others[#others + 1] = claim end
  end
  return others, own
end

-- How many due claims of others are older.
local function count_claims_ahead(others, owner, since_us)
  local ahead = 0
  for _, claim in ipairs(others) do
    local is_due = claim.ends_us - claim_ttl_us - claim.since_us >= due_us
    local is_older = claim.since_us < since_us or claim.since_us == since_us and claim.owner < owner
    if is_due and is_older then ahead = ahead + 1 end
  end
  return ahead
end
