-- Reads, writes or deletes one small record. Twin of records.py.
--
-- KEYS  1: the record (a string; `delete` without an expected value deletes a key of any type)
-- ARGV  1: now in µs, not used: the server expires records
--       2: read, write or delete; 3: 1 if a value is expected; 4: the expected value, empty for no record
--       for write also 5: the value, 6: its time to live in milliseconds, 0 for none
-- reply {value} or {} for read; {1} or {0} for the others

local key, command, expects, expected = KEYS[1], ARGV[2], ARGV[3] == '1', ARGV[4]

if command == 'read' then
  local value = redis.call('GET', key)
  return value and {value} or {}
end

if expects and (redis.call('GET', key) or '') ~= expected then return {0} end

if command == 'delete' then return {redis.call('DEL', key)} end

if ARGV[6] == '0' then
  redis.call('SET', key, ARGV[5])
else
  redis.call('SET', key, ARGV[5], 'PX', ARGV[6])
end
return {1}
