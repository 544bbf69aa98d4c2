-- Begins a script whose keys, all of them, are named at the end of its arguments, followed by their number.
--
-- While a slot moves from one node of a cluster to another, a call that declares several keys is refused unless
-- all of them are in one place, and a key that does not exist is in none. So only the state is declared then; a
-- change by an operator that is at the other node at that moment is not seen.

for i = tonumber(table.remove(ARGV)), 1, -1 do KEYS[i] = table.remove(ARGV) end
