-- Acquires, releases and renews permits for calls in flight. Lua version of operation.py.
-- operation.py puts permit_support.lua above this text.
--
-- KEYS  for each operation: a sorted set of permits (`id owner`) by their deadline in µs; a sorted set of the claims of
--       waiting processes (`since owner`, in µs) by their expiry in µs
-- ARGV  1: now in µs, or 0 for the server's clock;
--       then for each operation: take, wait (take or leave a claim), last (take or withdraw the claim), give, renew or
--       hold (register permits in use); the permit (give: one or more, one per line; take, wait and last: further
--       lines are permits to release first; hold: one or more, one per line, each after the µs that it has left);
--       the number of permits; the time to live of a permit in µs
-- reply for each operation: 1 if it succeeded, else 0; for a refusal the µs until the first deadline, else 0; for a
--       refused wait the µs after which to retry, or 0 for the usual pause. If a key is unusable: an error text in
--       place of the first, then 0 for the permits or 1 for the claims

local poll_us_min, poll_divisor = 2000, 16
local key_ms = 10000

-- When to retry, for a process whose turn it is or that gives way; 0 for the others, which use the usual pause.
local function poll_us(key, owner, others, ahead, since_us, max_permits, ttl_us)
  local in_use = redis.call('ZCARD', key)
  local last = {}
  if in_use > 0 then
    last = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', in_use - 1, 1)
  end
  if ahead == 0 then
    local held_elsewhere = last[1] and (string.match(last[1], '^[^ ]* (.*)$') or '') ~= owner
    if now_us - since_us < due_us or not (held_elsewhere or #others > 0) then return 0 end
  end
  local held_us = last[2] and now_us + ttl_us - last[2] or 0
  return math.max(poll_us_min, math.floor(held_us / poll_divisor)) * (1 + math.floor(ahead / max_permits))
end

local function acquire(key, waiting, command, permits, max_permits, ttl_us)
  local permit, owner = first_permit(permits)
  local others, own, claims_error = read_claims(waiting, owner)
  if claims_error then return claims_error, 1, 0 end
  local waits = command ~= 'take'
  local since_us = waits and own and own.since_us or now_us
  local ahead = count_claims_ahead(others, owner, since_us)
  remove_permits(key, permits) -- its own, too: a retry may follow a grant whose reply was lost
  local granted = redis.call('ZCARD', key) + ahead < max_permits
  if own and waits and (granted or command == 'last') then redis.call('ZREM', waiting, own.member) end
  if granted then return add_permit(key, permit, ttl_us) end
  local first = redis.call('ZRANGEBYSCORE', key, '-inf', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local wait_us = first[2] and math.floor(first[2]) - now_us or ttl_us
  if command ~= 'wait' then return 0, wait_us, 0 end
  if #others < claims_max then
    redis.call('ZADD', waiting, integer_text(now_us + claim_ttl_us), integer_text(since_us) .. ' ' .. owner)
    redis.call('PEXPIRE', waiting, key_ms)
  end
  return 0, wait_us, poll_us(key, owner, others, ahead, since_us, max_permits, ttl_us)
end

local function apply(key, waiting, command, permit, max_permits, ttl_us)
  local permits_error = remove_expired(key, ttl_us)
  if permits_error then return permits_error, 0, 0 end
  if command == 'give' then
    return math.min(1, remove_permits(key, permit)), 0, 0
  end
  if command == 'hold' then
    for left_us, held in string.gmatch(permit, '(%d+) ([^\n]+)') do
      redis.call('ZADD', key, integer_text(now_us + left_us), held)
    end
    redis.call('PEXPIRE', key, integer_text(math.ceil(ttl_us / 1000))) -- no permit has a later deadline
    return 1, 0, 0
  end
  if command == 'renew' then
    -- not removed first: that may delete the key, which a node of a cluster cannot create while its slot moves
    if not redis.call('ZADD', key, 'XX', 'INCR', 0, permit) then return 0, 0, 0 end
    return add_permit(key, permit, ttl_us)
  end
  return acquire(key, waiting, command, permit, max_permits, ttl_us)
end

local reply = {}
for i = 1, #KEYS / 2 do
  local a = 4 * i - 2
  local max_permits, ttl_us = tonumber(ARGV[a + 2]), tonumber(ARGV[a + 3])
  reply[3 * i - 2], reply[3 * i - 1], reply[3 * i] =
    apply(KEYS[2 * i - 1], KEYS[2 * i], ARGV[a], ARGV[a + 1], max_permits, ttl_us)
end
return reply
