"""The engine behind ``shared://name``: state shared by the processes of one user on one machine, no server.

- ``store``: ``SharedStore``, the engine.
- ``fast_path``: ``SharedBoundLimit``, a limit's direct path from a key to a decision.
- ``locked_table``: the table under its file locks: bounded waits and atomic writes.
- ``table``: the memory-mapped hash table as bytes: states, eviction; reads no clock.
- ``index``: the index of the table, from a key's digest to its slot.
- ``slots``: slots of several sizes in the file, and its growth.
- ``layout``: the file's layout; does no I/O.
- ``directory``: finding, creating and checking the directory that holds the table and the lock files.
"""
