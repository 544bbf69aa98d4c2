-- Begins a script whose commands may name only one key each; EXISTS, the only one with several, is called for each.
--
-- A script that reads keys of several slots of a node (cluster_reads.py) declares none: it may read any key of the
-- node, but no command may name keys of two slots. On a node that is importing a slot, no command may name several
-- keys unless all of them exist.

local stored = redis

local redis = {
  call = function(command, ...)
    if command ~= 'EXISTS' then return stored.call(command, ...) end
    local count = 0
    for _, key in ipairs({...}) do count = count + stored.call(command, key) end
    return count
  end,
  pcall = stored.pcall,
}
