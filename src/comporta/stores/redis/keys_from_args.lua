-- Begins a script that receives all its keys at the end of its arguments, followed by their number.
--
-- A node that is importing a slot refuses a call that declares several keys unless it has all of them, and a key that
-- does not exist counts as missing. Such a call therefore declares only its first key. A call with keys of several
-- slots declares none of them.

for i = tonumber(table.remove(ARGV)), 1, -1 do KEYS[i] = table.remove(ARGV) end
