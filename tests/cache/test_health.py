"""The rules of a key's health: backoff, freshness, priority, and which result is better."""

from __future__ import annotations

from typing import Any

import pytest

from comporta import Coverage, calculate_backoff_minutes
from comporta.cache.health import freshness, is_better, priority

WHOLE = Coverage(("SP", "RJ"))
HALF = Coverage(("SP",), ("RJ",))
OTHER_HALF = Coverage(("RJ",), ("SP",))


@pytest.mark.parametrize(
    ("streak", "minutes"), [(0, 0), (1, 1), (2, 5), (3, 15), (4, 30), (5, 30), (999, 30)]
)
def test_backoff__any_streak__follows_0_1_5_15_30_minutes(streak: int, minutes: int) -> None:
    assert calculate_backoff_minutes(streak) == minutes


@pytest.mark.parametrize(
    ("streak", "error", "message"),
    [
        (-1, ValueError, "fail_streak must be at least 0, got -1"),
        (True, TypeError, "fail_streak must be an int, got True"),
        ("1", TypeError, "fail_streak must be an int, got '1'"),
    ],
)
def test_backoff__invalid_streak__raises(streak: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        calculate_backoff_minutes(streak)


@pytest.mark.parametrize(
    ("age", "word"), [(0, "fresh"), (9.9, "fresh"), (10, "stale"), (19.9, "stale"), (20, "expired")]
)
def test_freshness__any_age__is_fresh_stale_or_expired(age: float, word: str) -> None:
    assert freshness(age, 10, 20) == word


@pytest.mark.parametrize(
    ("accesses", "saved", "word"),
    [
        (0, False, "cold"),
        (2, False, "cold"),
        (3, False, "warm"),
        (9, False, "warm"),
        (10, False, "hot"),
        (0, True, "warm"),
        (3, True, "hot"),
    ],
)
def test_priority__accesses_and_saved__is_hot_warm_or_cold(accesses: int, saved: bool, word: str) -> None:
    assert priority(accesses, saved=saved) == word


@pytest.mark.parametrize(
    ("new", "old", "usable", "better"),
    [
        (WHOLE, WHOLE, True, True),
        (None, WHOLE, True, True),
        (WHOLE, HALF, True, True),
        (HALF, WHOLE, True, False),
        (HALF, None, True, False),
        (HALF, HALF, True, True),
        (OTHER_HALF, HALF, True, False),
        (HALF, WHOLE, False, True),
        (HALF, None, False, True),
    ],
)
def test_is_better__new_and_old_coverage__never_loses_usable_units(
    new: Coverage | None, old: Coverage | None, usable: bool, better: bool
) -> None:
    assert is_better(new, old, usable=usable) is better
