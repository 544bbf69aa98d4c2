-- Begins a script for the node that is giving a slot away. Declared are only the states (`state_names` in
-- cluster_slots.py), which this node has; all keys are at the end of the arguments, followed by their number.
--
-- The other keys may be on the new node already, or not exist: an operator's override, and the claims of processes
-- that wait for permits. Here they are read as absent, and what is written to them is dropped.

local stored, declared = redis, {}
for _, key in ipairs(KEYS) do declared[key] = true end
for i = tonumber(table.remove(ARGV)), 1, -1 do KEYS[i] = table.remove(ARGV) end

local absent = {GET = false, ZRANGEBYSCORE = {}}

local function send(apply, command, ...)
  local key = ...
  if key == nil or declared[key] then return apply(command, ...) end
  local reply = stored.pcall(command, ...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  if not string.find(reply.err, 'non local key', 1, true) then return apply(command, ...) end
  if absent[command] ~= nil then return absent[command] end
  return 0
end

local redis = {
  call = function(...) return send(stored.call, ...) end,
  pcall = function(...) return send(stored.pcall, ...) end,
}
