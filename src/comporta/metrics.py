"""Counters and histograms of what comporta does, sent to a sink that the program chooses.

Code that counts calls :func:`count` and :func:`observe`. The sink decides where the numbers go: memory,
Prometheus, OpenTelemetry. Nothing is counted or timed until the program sets a sink with :func:`use_metrics`.

This module does not know which metrics exist; ``docs/reference/metrics.md`` lists them.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from comporta.validators import require_integer

OTHER: Final = "other"
"""The label value for label sets beyond the maximum."""

LABEL_SETS_MAX = 10_000
"""By default a sink keeps at most this many label sets, all metrics together."""

DURATION_BUCKETS: Final = (
    *(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4),
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0),
)
"""Histogram bounds in seconds: from a decision in memory to a caller that waits for capacity."""


class Metrics(Protocol):
    """A sink for metrics. Callers use it on hot paths: it must return quickly and never block."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Record ``value`` in a histogram."""


class _CurrentSink:
    """The sink of this process. Every call reads it: Python reads a slot faster than a class attribute."""

    __slots__ = ("sink",)

    def __init__(self) -> None:
        self.sink: Metrics | None = None


_current = _CurrentSink()


def use_metrics(sink: Metrics | None) -> Metrics | None:
    """Send all metrics of this process to ``sink`` from now on and return the previous sink.

    ``None`` turns metrics off. Objects with their own sink keep it.
    """
    previous, _current.sink = _current.sink, sink
    return previous


def current_metrics() -> Metrics | None:
    """Return the sink of this process, or ``None``."""
    return _current.sink


def count(name: str, value: float = 1, /, **labels: str) -> None:
    """Add ``value`` to a counter of the current sink, if any. Exceptions of the sink are dropped."""
    sink = _current.sink
    if sink is not None:
        with suppress(Exception):
            sink.counter(name, value, **labels)


def observe(name: str, value: float, /, **labels: str) -> None:
    """Record ``value`` in a histogram of the current sink, if any. Exceptions of the sink are dropped."""
    sink = _current.sink
    if sink is not None:
        with suppress(Exception):
            sink.histogram(name, value, **labels)


class BoundedSet:
    """A set that stops growing at ``max_size``, so that labels taken from requests cannot fill the memory."""

    def __init__(self, max_size: int) -> None:
        self._max_size = require_integer("label_sets_max", max_size, 1)
        self._items: set[Hashable] = set()
        self._lock = Lock()

    def admits(self, item: Hashable) -> bool:
        """Add the item if there is room, and return whether the set contains it."""
        if item in self._items:
            return True
        with self._lock:
            if len(self._items) < self._max_size:
                self._items.add(item)
            return item in self._items


@dataclass(frozen=True, slots=True)
class HistogramSummary:
    """What :class:`InMemoryMetrics` keeps of a histogram."""

    count: int
    total: float
    minimum: float
    maximum: float

    @property
    def mean(self) -> float:
        """The average value."""
        return self.total / self.count


_Labels = tuple[tuple[str, str], ...]
_Series = tuple[str, _Labels]

_OVERFLOW_LABELS: _Labels = ((OTHER, "true"),)


class InMemoryMetrics:
    """A sink that keeps metrics in this process, for tests and status pages.

    It keeps at most ``label_sets_max`` label sets across all metrics. After that, a known metric with a new
    label set is counted under the single label ``other="true"``, and a new metric is counted under the name
    ``other``. The sums therefore stay complete, and memory stays bounded.
    """

    def __init__(self, label_sets_max: int = LABEL_SETS_MAX) -> None:
        self._label_sets = BoundedSet(label_sets_max)
        self._names: set[str] = set()
        self._lock = Lock()
        self._counters: dict[_Series, float] = {}
        self._histograms: dict[_Series, HistogramSummary] = {}

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""
        with self._lock:
            series = self._series(name, labels)
            self._counters[series] = self._counters.get(series, 0) + value

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Record ``value`` in a histogram."""
        with self._lock:
            series = self._series(name, labels)
            summary = self._histograms.get(series) or HistogramSummary(0, 0, value, value)
            self._histograms[series] = HistogramSummary(
                summary.count + 1,
                summary.total + value,
                min(summary.minimum, value),
                max(summary.maximum, value),
            )

    def value(self, name: str, /, **labels: str) -> float:
        """Return the sum of a counter over all label sets that include ``labels``, or 0."""
        wanted = set(labels.items())
        with self._lock:
            counters = list(self._counters.items())
        return sum(value for (series, has), value in counters if series == name and wanted <= set(has))

    def snapshot(self) -> dict[str, float | HistogramSummary]:
        """Return all metrics by name and labels: ``{'hits{page="1"}': 3, 'wait': HistogramSummary(...)}``."""
        with self._lock:
            values: dict[_Series, float | HistogramSummary] = {**self._counters, **self._histograms}
        return {_series_text(*series): values[series] for series in sorted(values)}

    def clear(self) -> None:
        """Reset every metric to zero. Known label sets stay known."""
        with self._lock:
            self._counters.clear()
            self._histograms.clear()

    def _series(self, name: str, labels: dict[str, str]) -> _Series:
        series = name, tuple(sorted(labels.items()))
        if self._label_sets.admits(series):
            self._names.add(name)
            return series
        return (name if name in self._names else OTHER), _OVERFLOW_LABELS


def _series_text(name: str, labels: _Labels) -> str:
    pairs = ",".join(f'{label}="{_escape_label(str(value))}"' for label, value in labels)
    return f"{name}{{{pairs}}}" if pairs else name


def _escape_label(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
