"""How a key fares: fresh or stale, hot or cold, how long it is left alone, which answer is the better one.

Pure: ages and counts come in, words go out.
"""

from __future__ import annotations

from typing import Final

from comporta.cache.coverage import Coverage

FRESH: Final = "fresh"
STALE: Final = "stale"
EXPIRED: Final = "expired"

HOT: Final = "hot"
WARM: Final = "warm"
COLD: Final = "cold"
PRIORITIES: Final = (HOT, WARM, COLD)

HOT_ACCESSES: Final = 10
"""From so many accesses in 24 hours on a key is hot; a saved search needs a third of that."""

WARM_ACCESSES: Final = 3

_BACKOFF_MINUTES = (0, 1, 5, 15, 30)


def calculate_backoff_minutes(fail_streak: int) -> int:
    """Return for how many minutes a key that failed so often in a row is left alone: 0, 1, 5, 15, then 30."""
    if isinstance(fail_streak, bool) or not isinstance(fail_streak, int):
        raise TypeError(f"fail_streak must be an int, got {fail_streak!r:.50}")
    if fail_streak < 0:
        raise ValueError(f"fail_streak must be at least 0, got {fail_streak}")
    return _BACKOFF_MINUTES[min(fail_streak, len(_BACKOFF_MINUTES) - 1)]


def freshness(age: float, fresh: float, stale: float) -> str:
    """Return what an answer of this age is, all in seconds."""
    if age < fresh:
        return FRESH
    return STALE if age < stale else EXPIRED


def priority(accesses: int, *, saved: bool = False) -> str:
    """Return how much a key is wanted, by its accesses in 24 hours; a saved search is never cold."""
    if accesses >= (WARM_ACCESSES if saved else HOT_ACCESSES):
        return HOT
    return WARM if saved or accesses >= WARM_ACCESSES else COLD


def is_better(new: Coverage | None, old: Coverage | None, *, usable: bool) -> bool:
    """Whether a new answer takes the place of the old one.

    It does if the old one is no longer usable, if the new one is complete (one without coverage is), or if it
    has all that the old one has. So a fresh answer with a hole never takes the place of one that is whole and
    still good.
    """
    if not usable or new is None or new.complete:
        return True
    return old is not None and set(new.succeeded_ufs) >= set(old.succeeded_ufs)
