"""Which figure stands in which column of a history, and what a history says. Pure: no clock, no I/O.

Sums come first. What is set (a gauge) is kept one higher than it is, so that 0 is that nobody said it: a slot
in which calls were counted may have ended before anybody looked at the upstream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from comporta.stores.history import NUMBER_MAX, SLOT_SECONDS, SLOT_US, History

CACHE: Final = "cache"
SERVICE: Final = "service"
_UPSTREAM: Final = "upstream."

WAIT_BOUNDS: Final = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
"""Seconds up to which a wait belongs to each part of the histogram; the last part has no bound."""

MINUTE_SECONDS: Final = 60

_CLOSED, _HALF_OPEN, _OPEN, _NO_BREAKER = range(4)
PHASE_NUMBERS: Final = {"closed": _CLOSED, "half-open": _HALF_OPEN, "open": _OPEN, None: _NO_BREAKER}
_WORST_FIRST = (_OPEN, _HALF_OPEN, _CLOSED, _NO_BREAKER)
_CHANGES = {"breaker_opened": "open", "breaker_half_open": "half-open", "breaker_closed": "closed"}


class Layout(NamedTuple):
    """The columns of a kind of series: what is summed, what is set, and whether waits stand in between."""

    sums: tuple[str, ...]
    gauges: tuple[str, ...] = ()
    waits: bool = False

    @property
    def first_wait(self) -> int:
        """The column of the shortest waits."""
        return len(self.sums)

    @property
    def first_gauge(self) -> int:
        """The column of the first gauge."""
        return len(self.sums) + (len(WAIT_BOUNDS) + 1 if self.waits else 0)


UPSTREAM: Final = Layout(
    ("calls", "ok", "failed", "refused", "open", "limited", "other", "retries"),
    ("limit", "tokens", "phase", "paused", "in_flight"),
    waits=True,
)
_FIRST_WAIT: Final = UPSTREAM.first_wait
_PHASE: Final = UPSTREAM.first_gauge + UPSTREAM.gauges.index("phase")
OF_CACHE: Final = Layout(("hits", "stale", "misses"))
OF_SERVICE: Final = Layout(("requests", "errors", "refused"))


def series_of(upstream: str) -> str:
    """Return the name of an upstream's series."""
    return f"{_UPSTREAM}{upstream}"


def upstream_of(series: str) -> str | None:
    """Return whose series it is, if it is an upstream's."""
    return series.removeprefix(_UPSTREAM) if series.startswith(_UPSTREAM) else None


def layout_of(series: str) -> Layout:
    """Return what stands in a series."""
    return {CACHE: OF_CACHE, SERVICE: OF_SERVICE}.get(series, UPSTREAM)


def wait_column(seconds: float) -> int:
    """Return the column in which a wait for an upstream is counted."""
    return _FIRST_WAIT + bisect_left(WAIT_BOUNDS, seconds)


def gauges_of(shown: Mapping[str, Any]) -> dict[int, int]:
    """Return what a card says as columns to set; what it does not say is left as it was.

    How the circuit stands is not among it: a slot remembers all that it saw of that (:func:`phase_seen`).
    """
    figures = {
        "limit": round(1000 * shown["limit"]),
        "tokens": shown["tokens"],
        "paused": int(shown["paused"] > 0),
        "in_flight": shown["in_flight"],
    }
    first = UPSTREAM.first_gauge
    return {
        first + place: min(1 + max(0, figures[name]), NUMBER_MAX)
        for place, name in enumerate(UPSTREAM.gauges)
        if figures.get(name) is not None
    }


def phase_seen(phase: str | None) -> tuple[int, int]:
    """Return the mark in a slot that says that a circuit stood so."""
    return _PHASE, 1 << PHASE_NUMBERS[phase]


def phase_after(kind: str) -> str | None:
    """Return how a circuit stands after an event, if that is one of circuits."""
    return _CHANGES.get(kind)


def minute_of(history: History, layout: Layout = UPSTREAM) -> dict[str, Any]:
    """Return what was counted in the last minute, and how long calls waited; of slots that began in it.

    So they are 50 to 60 seconds. Waits are seconds, ``None`` where there were no calls.
    """
    slots = [slot.numbers for slot in history.slots if slot.age < MINUTE_SECONDS]
    summed = [sum(column) for column in zip(*slots, strict=True)] or [0] * layout.first_gauge
    found: dict[str, Any] = dict(zip(layout.sums, summed, strict=False))
    if layout.waits:
        found |= _waits(summed, layout, (50, 95, 99))
    return found


def columns_of(history: History, layout: Layout = UPSTREAM, now: float = 0.0) -> dict[str, list[Any]]:
    """Return each figure over time, a list of one number for each slot.

    ``starts`` is when they began by the reader's time, which was ``now`` when it was recalled; ``slots`` are
    their numbers by the clock of the state, by which the same slot is known again in another recall.
    ``phases`` is how the circuit stood at any time of a slot, the worst first; ``phase`` is that one.
    """
    rows = [slot.numbers for slot in history.slots]
    found: dict[str, list[Any]] = {
        "starts": [round(now - slot.age, 3) for slot in history.slots],
        "slots": [round(history.now_us / SLOT_US - slot.age / SLOT_SECONDS) for slot in history.slots],
    }
    for column, name in enumerate(layout.sums):
        found[name] = [row[column] for row in rows]
    if layout.waits:
        waits = [_waits(row, layout, (50, 95)) for row in rows]
        found |= {name: [row[name] for row in waits] for name in ("wait_p50", "wait_p95")}
    for column, name in enumerate(layout.gauges, layout.first_gauge):
        found[name] = [_gauge(name, row[column]) for row in rows]
    if layout.gauges:
        found["phases"] = [_phases(row[_PHASE]) for row in rows]
    return found


def _gauge(name: str, written: int) -> float | int | None:
    if not written:
        return None
    if name == "phase":
        return next(iter(_phases(written)), None)
    return (written - 1) / 1000 if name == "limit" else written - 1


def _phases(marks: int) -> list[int]:
    """Return how a circuit stood in a slot, the worst first."""
    return [phase for phase in _WORST_FIRST if marks >> phase & 1]


def _waits(numbers: Sequence[int], layout: Layout, percents: Iterable[int]) -> dict[str, float | None]:
    parts = numbers[layout.first_wait : layout.first_gauge]
    return {f"wait_p{percent}": percentile(parts, percent) for percent in percents}


def percentile(parts: Sequence[int], percent: int) -> float | None:
    """Estimate from a histogram how long the calls waited of which so many are no slower.

    Within a part they are taken to be spread evenly; those beyond the last bound count as that.
    """
    wanted = sum(parts) * percent / 100
    if not wanted:
        return None
    least = below = 0.0
    for bound, count in zip(WAIT_BOUNDS, parts, strict=False):
        if count and below + count >= wanted:
            return round(least + (bound - least) * (wanted - below) / count, 6)
        least, below = bound, below + count
    return WAIT_BOUNDS[-1]
