"""A share that falls and rises in steps."""

from __future__ import annotations

import pytest

from comporta.ramp import FULL_SHARE, cubic_share, is_due, millionths, step_down, step_down_to, step_up


def test_share__lowered_to_the_floor_and_raised_again__stays_in_range() -> None:
    share, shares = FULL_SHARE, []
    for _ in range(12):
        share = step_down(share, 100_000, 100_000)
        shares.append(share)
    for _ in range(12):
        share = step_up(share, 100_000)
        shares.append(share)
    down = [n * 100_000 for n in range(9, 0, -1)]
    assert shares == [
        *down,
        100_000,
        100_000,
        100_000,
        *(n * 100_000 for n in range(2, 11)),
        *[FULL_SHARE] * 3,
    ]


def test_share__below_the_floor__is_not_raised_and_never_zero() -> None:
    assert step_down(50, 10, 100) == 50
    assert step_down(5, 10, 0) == 1
    assert step_down_to(500, 900, 100) == 500
    assert step_down_to(500, 0, 0) == 1
    assert step_down_to(500, 200, 100) == 200
    assert millionths(1e-9) == 1
    assert millionths(0.1) == 100_000


@pytest.mark.parametrize(("since_us", "due"), [(0, False), (4, False), (5, True), (-1, True)])
def test_is_due__time_since_the_last_step__decides(since_us: int, due: bool) -> None:
    assert is_due(100 + since_us, 100, 5) is due


@pytest.mark.parametrize(
    ("elapsed", "share"),
    [
        *((0, 0.42), (1, 0.546), (2, 0.588), (3, 0.6), (4, 0.612), (5, 0.654), (6, 0.78)),
        *((7, 1.0), (32, 1.0), (33, 1.0), (10**9, 1.0)),
    ],
)
def test_cubic_share__time_since_the_drop__rises_to_the_peak_and_beyond(elapsed: int, share: float) -> None:
    found = cubic_share(600_000, 300_000, 3_000_000, elapsed * 1_000_000)
    assert found == pytest.approx(share * FULL_SHARE, rel=0.02)
    assert found <= FULL_SHARE


def test_cubic_share__each_microsecond__never_falls() -> None:
    shares = [cubic_share(777_777, 123_456, 1000, elapsed) for elapsed in range(12_000)]
    assert shares == sorted(shares)
    assert (shares[1000], shares[-1]) == (777_777, FULL_SHARE)
