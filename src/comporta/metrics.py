"""Figures about what happens, for whoever wants them: counters and histograms.

Who counts says what happened to the current sink; where the figures go (memory, Prometheus, OpenTelemetry)
is the sink's business. There is no sink until somebody sets one, and then nothing is counted nor timed.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

OTHER: Final = "other"
"""The label of everything for which there was no room of its own."""

LABEL_SETS_MAX = 10_000
"""How many different label sets a sink keeps, all metrics together, unless it is told otherwise."""

DURATION_BUCKETS: Final = (
    *(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4),
    *(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0),
)
"""Bounds for durations in seconds: from a decision in memory to a caller who waited for a limit."""


class Metrics(Protocol):
    """A sink for figures. It is called in the middle of other work: it must be quick and never wait."""

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Note one more ``value`` of a distribution."""


class _Current:
    """The sink of this process; an object, so that reading it needs no lock and no ``global``."""

    sink: Metrics | None = None


def use_metrics(sink: Metrics | None) -> Metrics | None:
    """Send all figures of this process to ``sink`` from now on (``None``: nowhere); returns the one before.

    Whoever was given a sink of their own keeps it.
    """
    previous, _Current.sink = _Current.sink, sink
    return previous


def current_metrics() -> Metrics | None:
    """Return the sink of this process, if there is one."""
    return _Current.sink


class Bounded:
    """A set that stops growing, so that labels made from what strangers send cannot fill the memory."""

    def __init__(self, most: int) -> None:
        if isinstance(most, bool) or not isinstance(most, int):
            raise TypeError(f"label_sets_max must be an int, got {most!r:.50}")
        if most < 1:
            raise ValueError(f"label_sets_max must be at least 1, got {most}")
        self._most = most
        self._items: set[Hashable] = set()
        self._lock = Lock()

    def admits(self, item: Hashable) -> bool:
        """Whether the item is in, or was new and there was room for it."""
        if item in self._items:
            return True
        with self._lock:
            if len(self._items) < self._most:
                self._items.add(item)
            return item in self._items


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of a histogram in memory."""

    count: int
    total: float
    least: float
    most: float

    @property
    def mean(self) -> float:
        """The average value."""
        return self.total / self.count


_Labels = tuple[tuple[str, str], ...]
_Series = tuple[str, _Labels]

_FOLDED: _Labels = ((OTHER, "true"),)


class InMemoryMetrics:
    """Figures kept in this process, to be read by a test, a health page or a person.

    At most ``label_sets_max`` label sets are kept, all metrics together. What comes with a new one after
    that is added up, for each metric that is known by then, under the one label ``other="true"``; a metric
    that is itself new then is added up under the name ``other``. So nothing is lost from the sums, and
    the memory it takes is bounded.
    """

    def __init__(self, label_sets_max: int = LABEL_SETS_MAX) -> None:
        self._known = Bounded(label_sets_max)
        self._names: set[str] = set()
        self._lock = Lock()
        self._counters: dict[_Series, float] = {}
        self._histograms: dict[_Series, Summary] = {}

    def counter(self, name: str, value: float, /, **labels: str) -> None:
        """Add ``value`` to a counter."""
        with self._lock:
            series = self._series(name, labels)
            self._counters[series] = self._counters.get(series, 0) + value

    def histogram(self, name: str, value: float, /, **labels: str) -> None:
        """Note one more ``value`` of a distribution."""
        with self._lock:
            series = self._series(name, labels)
            was = self._histograms.get(series) or Summary(0, 0, value, value)
            self._histograms[series] = Summary(
                was.count + 1, was.total + value, min(was.least, value), max(was.most, value)
            )

    def value(self, name: str, /, **labels: str) -> float:
        """Return the sum of a counter over all label sets that have these labels; 0 if there is none."""
        wanted = set(labels.items())
        with self._lock:
            counters = list(self._counters.items())
        return sum(value for (known, has), value in counters if known == name and wanted <= set(has))

    def snapshot(self) -> dict[str, float | Summary]:
        """Return all figures by name and labels: ``{'hits{page="1"}': 3, 'seconds': Summary(...)}``."""
        with self._lock:
            figures: dict[_Series, float | Summary] = {**self._counters, **self._histograms}
        return {_shown(*series): figures[series] for series in sorted(figures)}

    def clear(self) -> None:
        """Begin again from nothing; label sets that are known stay so."""
        with self._lock:
            self._counters.clear()
            self._histograms.clear()

    def _series(self, name: str, labels: dict[str, str]) -> _Series:
        series = name, tuple(sorted(labels.items()))
        if self._known.admits(series):
            self._names.add(name)
            return series
        return (name if name in self._names else OTHER), _FOLDED


def _shown(name: str, labels: _Labels) -> str:
    pairs = ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels)
    return f"{name}{{{pairs}}}" if pairs else name


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
