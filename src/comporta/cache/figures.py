"""How often this worker answered from what is kept, with something stale, or only by a fetch.

Here they are counted and told to the metrics at once; every few seconds they are added to the fleet's, in the
table, where those of 24 hours are kept.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from comporta import forks
from comporta.cache.rows import Answers
from comporta.metrics import current_metrics

FRESH_HIT, STALE_HIT, MISS = "hit", "stale", "miss"
OUTCOMES = (FRESH_HIT, STALE_HIT, MISS)


class Rates:
    """Counts, until somebody takes them."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._lock = Lock()
        forks.register(self)

    def count(self, outcome: str, times: int = 1) -> None:
        """Count an answer."""
        if not times:
            return
        with self._lock:
            self._counts[outcome] += times
        sink = current_metrics()
        if sink is not None:
            with suppress(Exception):  # a sink that fails must not stop an answer
                sink.counter("cache_answers", times, outcome=outcome)

    def taken(self) -> Answers | None:
        """Return what was counted, and begin anew; nothing if there was nothing."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(OUTCOMES, 0)
        return Answers(*counts.values()) if any(counts.values()) else None

    def after_fork(self) -> None:
        """Leave what the parent counted to the parent."""
        forks.renew(self._lock)
        self._counts = dict.fromkeys(OUTCOMES, 0)
