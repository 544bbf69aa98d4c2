-- Begins a script that gets all its keys at the end of its arguments, followed by their number.
--
-- While a slot moves from one node of a cluster to another, a node refuses a call that declares several keys
-- unless it has all of them, and it has no key that does not exist. So such a call declares only the states. An
-- operator's override that is on the other node at that moment is not seen.

for i = tonumber(table.remove(ARGV)), 1, -1 do KEYS[i] = table.remove(ARGV) end
