"""The units of the last minute: five slices of 2**24 µs, of which the oldest counts in part."""

from __future__ import annotations

from struct import pack

import pytest

from comporta.limits.strategies.recent_traffic import (
    COUNT_MAX,
    NO_PAST,
    SLICE_US,
    recent_count,
    shift_past,
    subtract_released,
)

MINUTE_US = 60_000_000
START_US = 100 * SLICE_US


def past(*counts: int) -> bytes:
    return pack("<4I", *counts)


def test_shift__next_slice__puts_the_count_before_the_others() -> None:
    shifted = shift_past(past(1, 2, 3, 4), 9, START_US, START_US + SLICE_US)
    assert shifted == past(9, 1, 2, 3)


def test_shift__three_slices_later__leaves_two_empty() -> None:
    assert shift_past(past(1, 2, 3, 4), 9, START_US, START_US + 3 * SLICE_US) == past(0, 0, 9, 1)


@pytest.mark.parametrize(
    ("later_us", "expected"),
    [(MINUTE_US - 1, past(0, 0, 9, 1)), (MINUTE_US, NO_PAST), (-1, NO_PAST), (-SLICE_US, NO_PAST)],
)
def test_shift__after_a_minute_or_back__is_empty(later_us: int, expected: bytes) -> None:
    assert shift_past(past(1, 2, 3, 4), 9, START_US, START_US + later_us) == expected


def test_shift__more_than_a_slice_can_count__is_cut() -> None:
    assert shift_past(NO_PAST, COUNT_MAX + 5, START_US, START_US + SLICE_US) == past(2**32 - 1, 0, 0, 0)


def test_released__same_slice__is_subtracted_from_its_count() -> None:
    last_us = START_US + SLICE_US - 1
    assert subtract_released(past(1, 2, 3, 4), 9, START_US, last_us, 2) == (7, past(1, 2, 3, 4))
    assert subtract_released(past(1, 2, 3, 4), 9, START_US, last_us, 10) == (0, past(1, 2, 3, 4))


def test_released__next_slice__is_subtracted_from_an_empty_count() -> None:
    assert subtract_released(past(1, 2, 3, 4), 9, START_US, START_US + SLICE_US, 2) == (0, past(9, 1, 2, 3))
    assert subtract_released(past(1, 2, 3, 4), 9, START_US, START_US + SLICE_US, -2) == (2, past(9, 1, 2, 3))


@pytest.mark.parametrize(
    ("into_us", "expected"),
    [
        (0, 9 + 1 + 2 + 3 + 3),  # 3 slices and 0.576 of the fourth: 2.3 units, rounded up
        (SLICE_US - 1, 9 + 1 + 2 + 2),  # 2 slices and 0.576 of the third: 1.7 units
        (MINUTE_US - 3 * SLICE_US, 9 + 1 + 2 + 3),  # exactly 3 slices
        (MINUTE_US - 3 * SLICE_US - 1, 9 + 1 + 2 + 3 + 1),  # a microsecond of the fourth
    ],
)
def test_recent__moment_within_a_slice__counts_the_oldest_in_part(into_us: int, expected: int) -> None:
    last_us = START_US + min(into_us, 5)
    assert recent_count(past(1, 2, 3, 4), 9, last_us, START_US + into_us) == expected


def test_recent__oldest_slice__counts_to_the_microsecond() -> None:
    last_us = START_US + MINUTE_US - 3 * SLICE_US - 5
    assert recent_count(past(0, 0, 0, SLICE_US), 0, last_us, last_us) == 5
