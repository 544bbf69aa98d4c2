"""Counts what this process stores, and decides when the table is checked against its bounds.

Checking reads an index of the whole table, so it is due only after 1 % of a bound was stored. A table thus
exceeds its bounds by at most 1 % for each worker. The first result of a process makes a check due, so that
programs that store little and end are bounded, too.
"""

from __future__ import annotations

from threading import Lock

from comporta import fork_safety

EVICTED_MAX = 1000
"""Rows that one transaction evicts; if there are more, eviction continues when the next result is stored."""


class TableLimit:
    """The bounds of the table, and how much this process has stored since it was last checked."""

    def __init__(self, entries_max: int, bytes_max: int) -> None:
        self.entries_max = entries_max
        self.bytes_max = bytes_max
        self._rows = entries_max
        self._bytes = 0
        self._lock = Lock()
        fork_safety.register(self)

    def record(self, size: int) -> bool:
        """Count a result; return whether the caller must check the table."""
        with self._lock:
            self._rows += 1
            self._bytes += size
            is_due = self._rows * 100 >= self.entries_max or self._bytes * 100 >= self.bytes_max
            if is_due:
                self._rows = self._bytes = 0
            return is_due

    def record_evicted(self, count: int) -> None:
        """Make another check due if one transaction could not evict enough rows."""
        if count >= EVICTED_MAX:
            self._rows = self.entries_max

    def after_fork(self) -> None:
        """Reset the lock in a forked child."""
        fork_safety.reinit_lock(self._lock)
