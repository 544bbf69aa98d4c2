-- Counts the keys that a node of a cluster has.
--
-- While a slot moves, its old node creates no key in it. So if that node has none of the keys of an operation, it
-- never will, and the new node may decide. The reply ASK does not say so: before version 7, servers also send it if
-- the old node has some of the keys.
--
-- KEYS  the keys; none is declared
-- reply {how many of them exist on this node}

local count = 0
for _, key in ipairs(KEYS) do
  local reply = redis.pcall('EXISTS', key)
  local is_elsewhere = type(reply) == 'table' and string.find(reply.err, 'non local key', 1, true)
  if not is_elsewhere and reply ~= 0 then count = count + 1 end
end
return {count}
