"""What this worker counts until somebody takes it, column by column (``series.py``).

It is the sink for figures of the process, in front of another that gets everything as it comes. It is in
the way of every call, so it adds up and does nothing else; of upstreams there are ``SERIES_MAX`` at the most,
and what comes under more names is left out here.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from comporta import forks
from comporta.metrics import Metrics
from comporta.stores.history import COLUMNS, SERIES_MAX, is_series
from comporta.watching.series import (
    CACHE,
    OF_CACHE,
    OF_SERVICE,
    SERVICE,
    UPSTREAM,
    series_of,
    wait_column,
)

_OUTCOMES = {
    **{name: UPSTREAM.sums.index(name) for name in ("ok", "refused", "open", "limited")},
    "failure": UPSTREAM.sums.index("failed"),
}
_OTHER = UPSTREAM.sums.index("other")
_CALLS = UPSTREAM.sums.index("calls")
_RETRIES = UPSTREAM.sums.index("retries")
_ANSWERS = dict(zip(("hit", "stale", "miss"), range(len(OF_CACHE.sums)), strict=True))
_REQUESTS, _ERRORS, _REFUSED = range(len(OF_SERVICE.sums))


class Tallies:
    """A sink for figures that also passes them on to ``next``.

    ``stirred`` is called, outside the lock, when there is something to be taken that there was not before.
    """

    def __init__(self, next: Metrics | None = None) -> None:  # noqa: A002 - what comes next
        self._next = next
        self._lock = Lock()
        self._sums: dict[str, list[int]] = {}
        self._known: set[str] = set()
        self.stirred: Callable[[], None] | None = None
        forks.register(self)

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add to a counter, if it is one of ours; pass it on."""
        if name == "upstream_calls":
            outcome = _OUTCOMES.get(labels["outcome"], _OTHER)
            self._add(series_of(labels["upstream"]), int(value), _CALLS, outcome)
        elif name == "upstream_attempts":
            if value > 1:
                self._add(series_of(labels["upstream"]), int(value) - 1, _RETRIES)
        elif name == "cache_answers":
            if labels["outcome"] in _ANSWERS:
                self._add(CACHE, int(value), _ANSWERS[labels["outcome"]])
        elif name == "http_requests":
            self._add(SERVICE, int(value), _REQUESTS, *_bad(labels["status"]))
        if self._next is not None:
            self._next.counter(name, value, **labels)

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Count a wait, if it is for an upstream; pass it on."""
        if name == "upstream_wait_seconds":
            self._add(series_of(labels["upstream"]), 1, wait_column(value))
        if self._next is not None:
            self._next.histogram(name, value, **labels)

    def series(self) -> list[str]:
        """Return of what there is something to be taken."""
        with self._lock:
            return list(self._sums)

    def taken(self, series: str) -> list[int]:
        """Return what was counted, and begin anew; nothing where there was nothing."""
        with self._lock:
            return self._sums.pop(series, [])

    def after_fork(self) -> None:
        """Leave what the parent counted to the parent."""
        forks.renew(self._lock)
        self._sums.clear()

    def _add(self, series: str, count: int, *columns: int) -> None:
        with self._lock:
            sums = self._sums.get(series)
            new = sums is None
            if sums is None:
                if not self._admits(series):
                    return
                sums = self._sums[series] = [0] * COLUMNS
            for column in columns:
                sums[column] += count
        if new and self.stirred is not None:
            self.stirred()

    def _admits(self, series: str) -> bool:
        if series in (CACHE, SERVICE):
            return True
        if series not in self._known and len(self._known) < SERIES_MAX and is_series(series):
            self._known.add(series)
        return series in self._known


def _bad(status: str) -> tuple[int, ...]:
    """Return where an answer is counted besides, that was not what the client hoped for."""
    if status.startswith("5"):
        return (_ERRORS,)
    return (_REFUSED,) if status == "429" else ()
