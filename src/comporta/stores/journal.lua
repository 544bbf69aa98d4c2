-- Keeps the latest notes of a fleet. Twin of journal.py.
--
-- KEYS  1: the journal, a hash: the latest 200 notes in a ring of fields 0 to 199, and `next`: how many there
--          ever were
-- ARGV  1: now in µs, not used: a journal's life is the server's business
--       2: note or latest; for note from 3 on: the notes; for latest 3: how many
-- reply {how many were noted} for note; {the newest, the one before, ...} for latest

local most, life_ms = 200, 3600000
local key, verb = KEYS[1], ARGV[2]
local following = tonumber(redis.call('HGET', key, 'next') or '') or 0
-- not ours: a loop over numbers so large that one less is the same would never end
if not (following >= 0 and following <= 2 ^ 52 and following % 1 == 0) then following = 0 end

local function field(number) return string.format('%.0f', number % most) end

if verb == 'latest' then
  local names, reply = {}, {}
  for number = following - 1, math.max(0, following - tonumber(ARGV[3])), -1 do
    names[#names + 1] = field(number)
  end
  if #names == 0 then return reply end
  for _, note in ipairs(redis.call('HMGET', key, unpack(names))) do
    if note then reply[#reply + 1] = note end
  end
  return reply
end

for i = 3, #ARGV do redis.call('HSET', key, field(following + i - 3), ARGV[i]) end
redis.call('HSET', key, 'next', string.format('%.0f', following + #ARGV - 2))
redis.call('PEXPIRE', key, life_ms)
return {#ARGV - 2}
