"""Pipelines, and the parts they are made of, each usable alone.

- ``channel.py``: :class:`Channel`, a bounded queue between producers and consumers; ``sync_channel.py``: its
  methods for threads
- ``throttle/``: :class:`HierarchicalThrottle`, a global limit and one limit per partition
- ``writer/``: :class:`BatchWriter`, which writes rows to a sink in batches
- ``sinks/``: where rows go: SQLite, PostgreSQL, CSV, JSON lines, XLSX, Google Sheets
- ``run/``: :class:`Pipeline`: a source, a step, a sink, a checkpoint
- ``shared_run/``: :class:`TableSource`: one run for many processes and machines
- ``dead_letters.py``: :class:`DeadLetters`, a file of items and rows that failed for good
- ``files/``: append-only files, and the repair of a torn end
- ``waiter.py``, ``strict_json.py``, ``fork_reset.py``: helpers of the modules above
"""
