"""How often this worker answered from memory, with something stale, or not at all, in the last 24 hours."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

from comporta import forks
from comporta.clock import Clock
from comporta.metrics import current_metrics

FRESH_HIT, STALE_HIT, MISS = "hit", "stale", "miss"
OUTCOMES = (FRESH_HIT, STALE_HIT, MISS)
HOURS = 24

_HOUR_NS = 3_600_000_000_000


class Rates:
    """Counts by the hour; what is older than a day is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._now_ns = clock.now_ns
        self._hours: dict[int, dict[str, int]] = {}
        self._lock = Lock()
        forks.register(self)

    def count(self, outcome: str, times: int = 1) -> None:
        """Count an answer."""
        if not times:
            return
        hour = self._now_ns() // _HOUR_NS
        with self._lock:
            counts = self._hours.setdefault(hour, dict.fromkeys(OUTCOMES, 0))
            counts[outcome] += times
            for old in [one for one in self._hours if not hour - HOURS < one <= hour]:
                del self._hours[old]
        sink = current_metrics()
        if sink is not None:
            with suppress(Exception):  # a sink that fails must not stop an answer
                sink.counter("cache_answers", times, outcome=outcome)

    def of_a_day(self) -> dict[str, float]:
        """Return how many there were, and what part of them were hits, stale and misses."""
        with self._lock:
            counts = {name: sum(hour[name] for hour in self._hours.values()) for name in OUTCOMES}
        total = sum(counts.values())
        shares = {f"{name}_rate": counts[name] / total if total else 0.0 for name in OUTCOMES}
        return {"answers": total, **shares}

    def after_fork(self) -> None:
        """Leave what the parent counted to the parent."""
        forks.renew(self._lock)
        self._hours.clear()
