-- Begins a script that receives all its keys at the end of its arguments, followed by their number.
--
-- While a slot moves from one node of a cluster to another, a node refuses a call that declares several keys
-- unless it has all of them, and a key that does not exist counts as missing. Such a call therefore declares
-- only the states. It does not see an operator's override that is on the other node at that moment. A call with keys
-- of several slots declares none of them (keys_across_slots.lua).

for i = tonumber(table.remove(ARGV)), 1, -1 do KEYS[i] = table.remove(ARGV) end
