-- The most frequent decision of acquire.lua and claims.lua, placed before everything else because a server
-- pays for each function that a script defines: one key of a token bucket without override, leases, claims,
-- headroom and debt, whose state is valid. All other cases continue below with the complete algorithm
-- (token_bucket.lua), as does a caller of claims.lua that is refused, because it may leave a claim.

if ARGV[5] == '0' and (#ARGV == 6 or #ARGV == 11 and ARGV[7] == '0') then
  local call, pcall = redis.call, redis.pcall
  local now_us, seconds, micros
  if ARGV[1] == '0' then
    local time = call('TIME')
    seconds, micros = time[1], time[2]
    now_us = seconds * 1000000 + micros
  else
    now_us = ARGV[1] + 0
    seconds, micros = string.match(string.format('%.6f', now_us / 1000000), '^(%d+)%.(%d+)')
  end
  local override, fields = pcall('GET', KEYS[1]), pcall('HMGET', KEYS[2], 'tokens', 'last_refill', 'n', 'w')
  local tokens, last_us, recent = tonumber(fields[1] or ''), tonumber(fields[2] or ''), fields[3]
  if not override and tokens and last_us and recent and not fields[4] then
    local per_us, unit, amount = ARGV[3] + 0, ARGV[4] + 0, ARGV[6] + 0
    local full, need = ARGV[2] * unit, amount * unit
    -- x - x % 1 is math.floor(x) without a call
    local level = tokens * unit + 0.5
    level = level - level % 1
    last_us = last_us * 1000000 + 0.5
    last_us = last_us - last_us % 1
    if level >= 0 and level <= full and last_us >= 0 and last_us <= now_us and need <= full then
      level = level + (now_us - last_us) * per_us
      if level > full then level = full end
      if level < need and #ARGV == 6 then return {math.ceil((need - level) / per_us)} end
      local comma, count, past = string.find(recent, ',', 1, true), recent, ''
      if comma then count, past = string.sub(recent, 1, comma - 1), string.sub(recent, comma) end
      count = tonumber(count, 16) or 1e15 -- a negative number becomes a huge one, too
      if level >= need and count < 1e15 and now_us - now_us % 16777216 == last_us - last_us % 16777216 then
        local format = string.format
        level = level - need
        -- whole numbers, because printing a fraction takes a server several times as long
        local part, left = level % unit, nil
        if part == 0 then
          left = format('%d', level / unit)
        elseif 1000000 % unit == 0 then
          left = format('%d.%06d', (level - part) / unit, part * (1000000 / unit))
        else
          left = format(level < 1e13 and '%.14g' or '%.17g', level / unit)
        end
        -- the microseconds of TIME have no leading zeros
        call('HSET', KEYS[2], 'tokens', left,
          'last_refill', seconds .. (#micros == 6 and '.' or string.sub('.00000', 1, 7 - #micros)) .. micros,
          'n', format('%x', count + amount) .. past)
        -- once a second is enough where any call leaves a longer time to live than the bucket takes to fill up
        if full > 59000000 * per_us or now_us - now_us % 1000000 ~= last_us - last_us % 1000000 then
          local ms = math.ceil(full / per_us / 1000)
          call('PEXPIRE', KEYS[2], ms > 60000 and format('%.0f', ms) or '60000')
        end
        return {0}
      end
    end
  end
end
