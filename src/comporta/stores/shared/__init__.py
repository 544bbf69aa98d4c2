"""The engine behind ``shared://name``: state shared by the processes of one user on one machine, no server.

- ``store``: ``SharedStore``, the engine.
- ``fast_path``: ``SharedBoundLimit``, a limit's direct path from a key to a decision.
- ``locked_table``: the table under its file locks: bounded waits and atomic writes.
- ``table``: the memory-mapped hash table as bytes; takes no lock and reads no clock.
- ``directory``: finding, creating and checking the directory that holds the table and the lock files.
"""
