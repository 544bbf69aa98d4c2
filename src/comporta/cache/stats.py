"""Counts how this worker answered: from a fresh entry, from a stale one, or only after a fetch.

Each answer goes to the metrics sink immediately. Every few seconds the maintenance thread adds the counts to
the fleet's, which the database keeps for 24 hours.
"""

from __future__ import annotations

from threading import Lock

from comporta import fork_safety, metrics
from comporta.cache.rows import AnswerCounts

FRESH_HIT, STALE_HIT, MISS = "hit", "stale", "miss"
OUTCOMES = (FRESH_HIT, STALE_HIT, MISS)


class AnswerCounter:
    """Counts answers by outcome until they are drained."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._lock = Lock()
        fork_safety.register(self)

    def count(self, outcome: str, times: int = 1) -> None:
        """Count answers of one outcome."""
        if not times:
            return
        with self._lock:
            self._counts[outcome] += times
        metrics.count("cache_answers", times, outcome=outcome)

    def drain(self) -> AnswerCounts | None:
        """Return the counts and reset them; ``None`` if they are all zero."""
        with self._lock:
            counts, self._counts = self._counts, dict.fromkeys(OUTCOMES, 0)
        return AnswerCounts(*counts.values()) if any(counts.values()) else None

    def after_fork(self) -> None:
        """Drop the parent's counts in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self._counts = dict.fromkeys(OUTCOMES, 0)
