-- Begins a script that receives the override record of its limit as its last argument (override_copies.py).
--
-- The keys of a limit may be on another node of a cluster than its override record. The name of the record that the
-- script declares is then in the slot of the key (cluster_slots.py), and nothing is stored there.

local override = table.remove(ARGV)
local stored = redis

local redis = {
  call = stored.call,
  pcall = function(command, key, ...)
    if command == 'GET' and string.find(key, 'rate_limiter_change:', 1, true) == 1 then return override end
    return stored.pcall(command, key, ...)
  end,
}
