-- Writes or deletes one small record. Lua version of records.py.
--
-- KEYS  1: the record (a string; `delete` without an expected value deletes a key of any type)
-- ARGV  1: now in µs, or 0 for the server's clock; used only for the change log: the server expires records
--       2: write or delete; 3: 1 if a value is expected; 4: the expected value, empty for no record;
--       5: the name for the change log, or empty; for write also 6: the value, 7: its time to live in ms, 0 for none
-- reply {1} if the record was written or deleted, else {0}

local key, command, expects, expected, name = KEYS[1], ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5]

if expects and (redis.call('GET', key) or '') ~= expected then return {0} end

local done = 1
if command == 'delete' then
  done = redis.call('DEL', key)
elseif ARGV[7] == '0' then
  redis.call('SET', key, ARGV[6])
else
  redis.call('SET', key, ARGV[6], 'PX', ARGV[7])
end
if name ~= '' and done == 1 then note_change(name, ARGV[1]) end
return {done}
