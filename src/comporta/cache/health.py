"""Rules about the health of a key: freshness, priority, backoff, and which of two results is better.

Pure: ages and counts in, words and numbers out. This module knows neither the database nor a clock.
"""

from __future__ import annotations

from typing import Final

from comporta.cache.coverage import Coverage
from comporta.validators import require_integer

FRESH: Final = "fresh"
STALE: Final = "stale"
EXPIRED: Final = "expired"

HOT: Final = "hot"
WARM: Final = "warm"
COLD: Final = "cold"
PRIORITIES: Final = (HOT, WARM, COLD)

HOT_ACCESSES: Final = 10
"""A key with this many accesses in 24 hours is hot; a saved search is hot with ``WARM_ACCESSES``."""

WARM_ACCESSES: Final = 3

_BACKOFF_MINUTES = (0, 1, 5, 15, 30)


def calculate_backoff_minutes(fail_streak: int) -> int:
    """Return how many minutes to wait after this many failures in a row: 0, 1, 5, 15, then 30."""
    require_integer("fail_streak", fail_streak, 0)
    return _BACKOFF_MINUTES[min(fail_streak, len(_BACKOFF_MINUTES) - 1)]


def freshness(age: float, fresh: float, stale: float) -> str:
    """Return ``fresh``, ``stale`` or ``expired`` for a result of this age; all arguments in one unit."""
    if age < fresh:
        return FRESH
    return STALE if age < stale else EXPIRED


def priority(accesses: int, *, saved: bool = False) -> str:
    """Return ``hot``, ``warm`` or ``cold`` by the accesses in 24 hours; saved keys are never cold."""
    if accesses >= (WARM_ACCESSES if saved else HOT_ACCESSES):
        return HOT
    return WARM if saved or accesses >= WARM_ACCESSES else COLD


def is_better(new: Coverage | None, old: Coverage | None, *, usable: bool) -> bool:
    """Whether a new result replaces the old one; ``usable`` says whether the old one has not expired.

    It does if the old one is no longer usable, if the new one is complete (a result without coverage is), or
    if it covers at least the same units. So a partial result never replaces a complete one that is usable.
    """
    if not usable or new is None or new.is_complete:
        return True
    return old is not None and set(new.succeeded) >= set(old.succeeded)
