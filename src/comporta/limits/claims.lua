-- Takes from one limit for one or more callers that have a priority class or wait, each separately.
-- Lua version of `ClaimOperation` (claim_operation.py) and of claims.py. scripts.py puts the Lua text of the strategy
-- and headroom.lua above this text and assigns the function of the strategy to `strategy`.
-- The claims are in the field `w` of the state: "claimant:rank:since_us:units:ends_us" of each, separated by spaces.
--
-- KEYS  1: the override record of the limit; then the state of each key
-- ARGV  1: now in µs, or 0 for the server's clock; 2-5: capacity, per_us, unit, window_us;
--       then for each key: the amount to take, the headroom of the caller's class, who the caller is, its rank, how
--       long its process has waited, and how long it will wait (below 0: not at all)
-- reply for each key wait_us, or an error text if the key is unusable.
--       This text leaves the reply in `reply`; the store appends the statement that returns it.

local CLAIMS_MAX, CLAIM_TTL_US, RETRY_EVERY_US = 16, 250000, 1000000

local now_us = time_us(ARGV[1])
local original, per_us = tonumber(ARGV[2]), tonumber(ARGV[3])
local unit, window_us = tonumber(ARGV[4]), tonumber(ARGV[5])
local capacity, debt, pause_us
capacity, per_us, unit, window_us, debt, pause_us = effective_params(
  KEYS[1], now_us, original, per_us, unit, window_us)

local function claim_text(claimant, rank, since_us, units, ends_us)
  return format('%.0f:%.0f:%.0f:%.0f:%.0f', claimant, rank, since_us, units, ends_us)
end

-- Whether a claim of another caller comes before this one.
local function is_ahead(rank, since_us, claimant, own_rank, own_since_us, own)
  if rank ~= own_rank then return rank < own_rank end
  if since_us ~= own_since_us then return since_us < own_since_us end
  return claimant < own
end

-- The live claims of others as texts, and the units of those that come before this caller.
local function read_claims(text, own, own_rank, own_since_us)
  local others, ahead = {}, 0
  for claimant, rank, since_us, units, ends_us in string.gmatch(text or '', '(%d+):(%d+):(%d+):(%d+):(%d+)') do
    claimant, rank, units = tonumber(claimant), tonumber(rank), tonumber(units)
    since_us = min(tonumber(since_us), now_us)
    ends_us = min(tonumber(ends_us), now_us + RETRY_EVERY_US + CLAIM_TTL_US)
    if ends_us > now_us and claimant ~= own then
      others[#others + 1] = claim_text(claimant, rank, since_us, units, ends_us)
      if is_ahead(rank, since_us, claimant, own_rank, own_since_us, own) then ahead = ahead + units end
    end
  end
  return others, ahead
end

local function write_claims(key, text, claims)
  local changed = table.concat(claims, ' ')
  if changed == (text or '') then return end
  if changed == '' then
    call('HDEL', key, 'w')
    return
  end
  call('HSET', key, 'w', changed)
  if call('PTTL', key) < 0 then expire(key, 0) end -- the claims are all there is
end

local function apply(key, amount, commit)
  return (strategy(key, now_us, amount, 0, commit, capacity, per_us, unit, window_us, debt))
end

-- How long until `amount` can be taken without the floor and the units ahead; 0 if it was taken.
local function take(key, amount, floor_units, ahead)
  local needed = amount + floor_units + ahead
  if ahead > 0 and needed > capacity then -- those ahead go first, however much there is
    local wait_us = apply(key, capacity, false)
    if type(wait_us) ~= 'number' then return wait_us end
    local more_us = per_us > 0 and ceil((needed - capacity) * unit / per_us) or 0
    return max(wait_us + more_us, pause_us, 1000)
  end
  local wait_us = 0
  if needed > amount then wait_us = apply(key, needed, false) end
  if wait_us == 0 then wait_us = apply(key, amount, pause_us == 0) end
  return type(wait_us) == 'number' and max(wait_us, pause_us) or wait_us
end

local reply = {}
for i = 6, #ARGV, 6 do
  local r = (i - 6) / 6 + 1
  local key, amount, own, rank = KEYS[r + 1], tonumber(ARGV[i]), tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local since_us, left_us = now_us - ARGV[i + 4], tonumber(ARGV[i + 5])
  local text = pcall('HGET', key, 'w')
  if type(text) ~= 'string' then text = nil end
  local claims, ahead = read_claims(text, own, rank, since_us)
  local floor_units = headroom_floor(
    key, now_us, amount, tonumber(ARGV[i + 1]), original, capacity, per_us, window_us)
  local wait_us = take(key, amount, floor_units, ahead)
  reply[r] = wait_us
  if type(wait_us) == 'number' then
    if wait_us > 0 and wait_us <= left_us and #claims < CLAIMS_MAX then
      local ends_us = now_us + min(wait_us, RETRY_EVERY_US) + CLAIM_TTL_US
      claims[#claims + 1] = claim_text(own, rank, since_us, amount, ends_us)
    end
    write_claims(key, text, claims)
  end
end
