"""Counts calls, cache answers and requests of this worker until they are published.

``FleetCounters`` is the metrics sink of the process, in front of another sink that gets every metric
unchanged. It runs within every call, so it only adds numbers. It counts at most ``SERIES_MAX`` upstreams;
calls of further upstreams are not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from comporta import fork_safety
from comporta.fleet.series import (
    CACHE_LAYOUT,
    CACHE_SERIES,
    SERVICE_LAYOUT,
    SERVICE_SERIES,
    UPSTREAM_LAYOUT,
    latency_column,
    latency_series,
    upstream_series,
    wait_column,
)
from comporta.metrics import Metrics
from comporta.stores.history import COLUMNS, SERIES_MAX, is_series_name

_OUTCOMES = {
    **{name: UPSTREAM_LAYOUT.sums.index(name) for name in ("ok", "refused", "open", "limited")},
    "failure": UPSTREAM_LAYOUT.sums.index("failed"),
}
_WOULD_REFUSE = UPSTREAM_LAYOUT.sums.index("would_refuse")
_CALLS = UPSTREAM_LAYOUT.sums.index("calls")
_RETRIES = UPSTREAM_LAYOUT.sums.index("retries")
_ANSWERS = dict(zip(("hit", "stale", "miss"), range(len(CACHE_LAYOUT.sums)), strict=True))
_REQUESTS, _ERRORS, _REFUSED = range(len(SERVICE_LAYOUT.sums))


class PendingCounts:
    """Counts by series and column that have not been published yet.

    ``on_pending`` is called, outside the lock, when a series gets its first count since it was drained.
    """

    def __init__(self) -> None:
        self.on_pending: Callable[[], None] | None = None
        self._lock = Lock()
        self._sums: dict[str, list[int]] = {}
        self._admitted: set[str] = set()
        fork_safety.register(self)

    def add(self, series: str, count: int, *columns: int) -> None:
        """Add to some columns of a series."""
        with self._lock:
            sums = self._sums.get(series)
            is_first = sums is None
            if sums is None:
                if not self._admits(series):
                    return
                sums = self._sums[series] = [0] * COLUMNS
            for column in columns:
                sums[column] += count
        if is_first and self.on_pending is not None:
            self.on_pending()

    def series(self) -> list[str]:
        """Return the series that have counts."""
        with self._lock:
            return list(self._sums)

    def drain(self, series: str) -> list[int]:
        """Return the counts of a series and reset them; an empty list if there are none."""
        with self._lock:
            return self._sums.pop(series, [])

    def after_fork(self) -> None:
        """Drop the parent's counts in a forked child."""
        fork_safety.reinit_lock(self._lock)
        self._sums.clear()

    def _admits(self, series: str) -> bool:
        if series in (CACHE_SERIES, SERVICE_SERIES):
            return True
        _, _, upstream = series.partition(".")  # an upstream has a series of each kind, or none
        if upstream not in self._admitted and len(self._admitted) < SERIES_MAX and is_series_name(series):
            self._admitted.add(upstream)
        return upstream in self._admitted


class FleetCounters:
    """A metrics sink that counts for a ``FleetPublisher``, and forwards every metric to ``forward_to``."""

    def __init__(self, forward_to: Metrics | None = None) -> None:
        self._forward_to = forward_to
        self._pending = PendingCounts()
        self._add = self._pending.add

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Count a call, an answer or a request, and forward the metric."""
        if name == "upstream_calls":
            outcome = _OUTCOMES.get(labels["outcome"], _CALLS)
            columns = {_CALLS, outcome}  # the rest of the calls had other outcomes
            self._add(upstream_series(labels["upstream"]), int(value), *columns)
        elif name == "would_refuse":
            if labels["upstream"]:
                self._add(upstream_series(labels["upstream"]), int(value), _WOULD_REFUSE)
        elif name == "upstream_attempts":
            if value > 1:
                self._add(upstream_series(labels["upstream"]), int(value) - 1, _RETRIES)
        elif name == "cache_answers":
            if labels["outcome"] in _ANSWERS:
                self._add(CACHE_SERIES, int(value), _ANSWERS[labels["outcome"]])
        elif name == "http_requests":
            self._add(SERVICE_SERIES, int(value), _REQUESTS, *_error_columns(labels["status"]))
        if self._forward_to is not None:
            self._forward_to.counter(name, value, **labels)

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Count the wait or the latency of an upstream call, and forward the metric."""
        if name == "upstream_wait_seconds":
            self._add(upstream_series(labels["upstream"]), 1, wait_column(value))
        elif name == "upstream_latency_seconds":
            self._add(latency_series(labels["upstream"]), 1, latency_column(value))
        if self._forward_to is not None:
            self._forward_to.histogram(name, value, **labels)


def _error_columns(status: str) -> tuple[int, ...]:
    """Return the additional columns in which a request with this HTTP status is counted."""
    if status.startswith("5"):
        return (_ERRORS,)
    return (_REFUSED,) if status == "429" else ()
