"""How many workers share a state, as known to one of them when an outage begins.

It gets its counts from replies and reads no registry itself (``worker_registry.py``).
"""

from __future__ import annotations

from comporta.clock import MONOTONIC
from comporta.stores.failover.worker_count_file import WORKER_COUNT_FILES, configured_worker_count
from comporta.stores.failover.worker_registry import DEAD_SECONDS


class WorkerCount:
    """The highest worker count of the last few seconds.

    A lower count is accepted only after ``DEAD_SECONDS``, and never during an outage: a registry that was
    just lost, or a clock that jumped, makes the fleet look small, and a share that is too large exceeds the
    limit.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._files = WORKER_COUNT_FILES.get()
        self._configured = configured_worker_count()
        self._remembered: int | None = None
        self._latest = self._peak = self._previous_peak = 0
        self._saved = 0
        self._window_start_ns = MONOTONIC.now_ns()

    @property
    def value(self) -> int:
        """The number of workers as far as this process knows; at least 1."""
        if self._remembered is None:
            self._remembered = self._files.load(self._address)
        return max(self._configured, self._remembered, self._peak, self._previous_peak)

    @property
    def observed(self) -> int:
        """The highest count of the last few seconds; before the first reply, ``value``."""
        return max(self._peak, self._previous_peak) or self.value

    def record(self, count: int) -> None:
        """Record a count from a reply; 0 means that the store does not know it."""
        if not count:
            return
        self._latest = count
        if count > self._peak:
            self._peak = count

    def expire(self) -> None:
        """Drop counts older than a worker may be silent; called only while the store is reachable."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._window_start_ns >= DEAD_SECONDS * 1e9:
            self._window_start_ns = now_ns
            if self._previous_peak:
                self._remembered = 1
            self._previous_peak, self._peak = self._peak, self._latest
            self._saved = self._files.load(self._address)  # other processes may have saved a lower count
        if self._latest and self._latest != self._saved:
            self._saved = self._latest
            self._files.save(self._address, self._latest)
