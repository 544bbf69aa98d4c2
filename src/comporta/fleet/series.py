"""The columns of a history, and how to read a history. Pure: no clock, no I/O.

Sums come first. A gauge is stored as its value plus one, so that 0 means that it was not set: a slot in which
calls were counted may have ended before a worker read the health of the upstream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from comporta.stores.history import NUMBER_MAX, SLOT_SECONDS, SLOT_US, History

CACHE_SERIES: Final = "cache"
SERVICE_SERIES: Final = "service"
_UPSTREAM_PREFIX: Final = "upstream."
LATENCY_PREFIX: Final = "latency."

WAIT_BOUNDS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""The upper bounds in seconds of the buckets for waits and latencies; the last bucket has no bound."""

MINUTE_SECONDS: Final = 60

_CLOSED, _HALF_OPEN, _OPEN, _NO_BREAKER = range(4)
PHASE_NUMBERS: Final = {"closed": _CLOSED, "half-open": _HALF_OPEN, "open": _OPEN, None: _NO_BREAKER}
_WORST_FIRST = (_OPEN, _HALF_OPEN, _CLOSED, _NO_BREAKER)
_EVENT_PHASES = {"breaker_opened": "open", "breaker_half_open": "half-open", "breaker_closed": "closed"}


class SeriesLayout(NamedTuple):
    """The columns of a series: sums, then a histogram of durations if it has a name, then gauges."""

    sums: tuple[str, ...]
    gauges: tuple[str, ...] = ()
    histogram: str = ""

    @property
    def first_bucket(self) -> int:
        """The first column of the histogram."""
        return len(self.sums)

    @property
    def first_gauge(self) -> int:
        """The column of the first gauge."""
        return len(self.sums) + (len(WAIT_BOUNDS) + 1 if self.histogram else 0)


UPSTREAM_LAYOUT: Final = SeriesLayout(
    ("calls", "ok", "failed", "refused", "open", "limited", "would_refuse", "retries"),
    ("limit", "tokens", "phase", "paused", "in_flight"),
    histogram="wait",
)
_FIRST_WAIT: Final = UPSTREAM_LAYOUT.first_bucket
_PHASE: Final = UPSTREAM_LAYOUT.first_gauge + UPSTREAM_LAYOUT.gauges.index("phase")
LATENCY_LAYOUT: Final = SeriesLayout((), histogram="latency")
CACHE_LAYOUT: Final = SeriesLayout(("hits", "stale", "misses"))
SERVICE_LAYOUT: Final = SeriesLayout(("requests", "errors", "refused"))


def upstream_series(upstream: str) -> str:
    """Return the name of an upstream's series."""
    return f"{_UPSTREAM_PREFIX}{upstream}"


def latency_series(upstream: str) -> str:
    """Return the name of the series with an upstream's latencies: its main series has no columns left."""
    return f"{LATENCY_PREFIX}{upstream}"


def latency_column(seconds: float) -> int:
    """Return the column of that series in which a latency of this length is counted."""
    return bisect_left(WAIT_BOUNDS, seconds)


def series_upstream(series: str) -> str | None:
    """Return the upstream of a series; ``None`` if it is not an upstream's."""
    return series.removeprefix(_UPSTREAM_PREFIX) if series.startswith(_UPSTREAM_PREFIX) else None


def series_layout(series: str) -> SeriesLayout:
    """Return the columns of a series."""
    if series.startswith(LATENCY_PREFIX):
        return LATENCY_LAYOUT
    return {CACHE_SERIES: CACHE_LAYOUT, SERVICE_SERIES: SERVICE_LAYOUT}.get(series, UPSTREAM_LAYOUT)


def wait_column(seconds: float) -> int:
    """Return the column in which a wait of this length is counted."""
    return _FIRST_WAIT + bisect_left(WAIT_BOUNDS, seconds)


def gauge_columns(summary: Mapping[str, Any]) -> dict[int, int]:
    """Return the gauges of a summary as columns to set; gauges that it does not have stay unchanged.

    The phase of the circuit is not one of them: a slot keeps every phase it saw (:func:`phase_mark`).
    """
    gauges = {
        "limit": round(1000 * summary["limit"]),
        "tokens": summary["tokens"],
        "paused": int(summary["paused"] > 0),
        "in_flight": summary["in_flight"],
    }
    first = UPSTREAM_LAYOUT.first_gauge
    return {
        first + place: min(1 + max(0, gauges[name]), NUMBER_MAX)
        for place, name in enumerate(UPSTREAM_LAYOUT.gauges)
        if gauges.get(name) is not None
    }


def phase_mark(phase: str | None) -> tuple[int, int]:
    """Return the column and the bit that record a phase of a circuit in a slot."""
    return _PHASE, 1 << PHASE_NUMBERS[phase]


def event_phase(kind: str) -> str | None:
    """Return the phase of a circuit after an event; ``None`` if the event does not concern one."""
    return _EVENT_PHASES.get(kind)


def last_minute(history: History, layout: SeriesLayout = UPSTREAM_LAYOUT) -> dict[str, Any]:
    """Return the counts of the last minute, and percentiles of the durations in seconds.

    The counts are sums over the slots that started within the last minute, which cover 50 to 60 s.
    Percentiles are ``None`` if there were no calls.
    """
    slots = [slot.numbers for slot in history.slots if slot.age < MINUTE_SECONDS]
    summed = [sum(column) for column in zip(*slots, strict=True)] or [0] * layout.first_gauge
    minute: dict[str, Any] = dict(zip(layout.sums, summed, strict=False))
    if layout.histogram:
        minute |= _percentiles(summed, layout, (50, 95, 99))
    return minute


def history_columns(
    history: History, layout: SeriesLayout = UPSTREAM_LAYOUT, now: float = 0.0
) -> dict[str, list[Any]]:
    """Return a history as one list for each column, with one number for each slot.

    ``starts`` are the starts of the slots by the reader's clock, which was ``now`` when the history was read.
    ``slots`` are their numbers by the store's clock, which identify a slot across reads. ``phases`` are all
    phases of the circuit during a slot, the worst first; ``phase`` is the worst.
    """
    rows = [slot.numbers for slot in history.slots]
    columns: dict[str, list[Any]] = {
        "starts": [round(now - slot.age, 3) for slot in history.slots],
        "slots": [round(history.now_us / SLOT_US - slot.age / SLOT_SECONDS) for slot in history.slots],
    }
    for column, name in enumerate(layout.sums):
        columns[name] = [row[column] for row in rows]
    if layout.histogram:
        durations = [_percentiles(row, layout, (50, 95)) for row in rows]
        names = (f"{layout.histogram}_p50", f"{layout.histogram}_p95")
        columns |= {name: [row[name] for row in durations] for name in names}
    for column, name in enumerate(layout.gauges, layout.first_gauge):
        columns[name] = [_parse_gauge(name, row[column]) for row in rows]
    if layout.gauges:
        columns["phases"] = [_parse_phases(row[_PHASE]) for row in rows]
    return columns


def _parse_gauge(name: str, stored: int) -> float | int | None:
    if not stored:
        return None
    if name == "phase":
        return next(iter(_parse_phases(stored)), None)
    return (stored - 1) / 1000 if name == "limit" else stored - 1


def _parse_phases(marks: int) -> list[int]:
    """Return the phases of a circuit in a slot, the worst first."""
    return [phase for phase in _WORST_FIRST if marks >> phase & 1]


def _percentiles(
    numbers: Sequence[int], layout: SeriesLayout, percents: Iterable[int]
) -> dict[str, float | None]:
    buckets = numbers[layout.first_bucket : layout.first_gauge]
    return {f"{layout.histogram}_p{percent}": percentile(buckets, percent) for percent in percents}


def percentile(buckets: Sequence[int], percent: int) -> float | None:
    """Estimate a percentile of durations from their histogram; ``None`` if it is empty.

    It assumes that durations are spread evenly within a bucket; those beyond the last bound count as that
    bound.
    """
    target = sum(buckets) * percent / 100
    if not target:
        return None
    lower = below = 0.0
    for bound, count in zip(WAIT_BOUNDS, buckets, strict=False):
        if count and below + count >= target:
            return round(lower + (bound - lower) * (target - below) / count, 6)
        lower, below = bound, below + count
    return WAIT_BOUNDS[-1]
