-- Reading and writing the claims on a key. Lua version of `units_ahead`, `claims_after` and `retry_wait_us` (claims.py).
-- The claims are in the field `w` of the state: "claimant:rank:since_us:units:ends_us" of each, separated by spaces.

local CLAIMS_MAX, CLAIM_TTL_US, RETRY_EVERY_US = 16, 250000, 1000000

local function claim_text(claimant, rank, since_us, units, ends_us)
  return format('%.0f:%.0f:%.0f:%.0f:%.0f', claimant, rank, since_us, units, ends_us)
end

-- Whether a claim of another caller comes before this one.
local function is_ahead(rank, since_us, claimant, own_rank, own_since_us, own)
  if rank ~= own_rank then return rank < own_rank end
  if since_us ~= own_since_us then return since_us < own_since_us end
  return claimant < own
end

-- The claims on a key as they are stored; empty if there are none.
local function claims_text(key)
  local text = pcall('HGET', key, 'w')
  return type(text) == 'string' and text or ''
end

-- The live claims of others as texts, and the units of those that come before this caller. If the last of
-- them in order comes after this caller, the field `last` is its index. The field `first_us` is the time
-- since which the first of the caller's class, this caller included, has been waiting.
local function read_claims(text, now_us, own, own_rank, own_since_us)
  local others, ahead = {}, 0
  if text == '' then return others, ahead end
  local last_rank, last_since_us, last_claimant, first_us = own_rank, own_since_us, own, own_since_us
  for claimant, rank, since_us, units, ends_us in string.gmatch(text, '(%d+):(%d+):(%d+):(%d+):(%d+)') do
    claimant, rank, units = tonumber(claimant), tonumber(rank), tonumber(units)
    since_us = min(tonumber(since_us), now_us)
    ends_us = min(tonumber(ends_us), now_us + RETRY_EVERY_US + CLAIM_TTL_US)
    if ends_us > now_us and claimant ~= own then
      others[#others + 1] = claim_text(claimant, rank, since_us, units, ends_us)
      if is_ahead(rank, since_us, claimant, own_rank, own_since_us, own) then ahead = ahead + units end
      if is_ahead(last_rank, last_since_us, last_claimant, rank, since_us, claimant) then
        others.last, last_rank, last_since_us, last_claimant = #others, rank, since_us, claimant
      end
      if rank == own_rank then first_us = min(first_us, since_us) end
    end
  end
  others.first_us = first_us
  return others, ahead
end

-- Writes the claims of others, and that of a caller that has to wait for `wait_us` and will wait for
-- `left_us`. Returns when the caller retries: a caller without a claim retries after half of the time that it
-- has waited, or after the time by which the first of its class has waited longer.
local function write_claims(key, now_us, text, claims, own, rank, since_us, units, wait_us, left_us)
  local retry_us = wait_us
  if wait_us > 0 and wait_us <= left_us then
    if #claims >= CLAIMS_MAX and claims.last then table.remove(claims, claims.last) end
    if #claims < CLAIMS_MAX then
      local ends_us = now_us + min(wait_us, RETRY_EVERY_US) + CLAIM_TTL_US
      claims[#claims + 1] = claim_text(own, rank, since_us, units, ends_us)
    else
      local behind_us = max(now_us - since_us, since_us - claims.first_us)
      retry_us = max(wait_us, min(math.floor(behind_us / 2), math.floor(left_us / 2), RETRY_EVERY_US))
    end
  end
  local changed = table.concat(claims, ' ')
  if changed == text then return retry_us end
  if changed == '' then
    call('HDEL', key, 'w')
    return retry_us
  end
  call('HSET', key, 'w', changed)
  if call('PTTL', key) < 0 then expire(key, 0) end -- the key holds nothing but the claims
  return retry_us
end
