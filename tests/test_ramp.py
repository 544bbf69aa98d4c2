"""A share that falls and rises in steps."""

from __future__ import annotations

import pytest

from comporta.ramp import (
    FULL_SHARE,
    cubic_share,
    is_due,
    millionths,
    ramp_share,
    step_down,
    step_down_to,
    step_up,
)


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


@pytest.mark.parametrize(
    ("elapsed_us", "share"),
    [(0, 420_000), (1_000_000, 546_586), (3_000_000, 600_000), (4_000_000, 606_646), (6_000_000, 780_000)],
)
def test_cubic_share__some_moments__is_exact(elapsed_us: int, share: int) -> None:
    found = cubic_share(600_000, 300_000, 3_000_000, elapsed_us)
    assert (found, type(found)) == (share, int)


def test_cubic_share__eleven_times_the_time_to_the_peak__is_full() -> None:
    assert cubic_share(1, 1, 1000, 10_999) == 1
    assert cubic_share(1, 1, 1000, 11_000) == FULL_SHARE


@pytest.mark.parametrize(
    ("elapsed_us", "share"),
    [(-1, 250_000), (0, 250_000), (9, 250_000), (10, 500_000), (29, 750_000), (30, FULL_SHARE)],
)
def test_ramp_share__each_step__is_an_equal_part(elapsed_us: int, share: int) -> None:
    found = ramp_share(3, 10, elapsed_us)
    assert (found, type(found)) == (share, int)


def test_ramp_share__no_steps_or_too_many__is_full_or_the_least() -> None:
    assert ramp_share(0, 10, 0) == FULL_SHARE
    assert ramp_share(2_000_000, 10, 0) == 1


def test_steps__of_any_share__are_exact() -> None:
    assert [millionths(part) for part in (0.0, 0.0000014, 1.0)] == [1, 1, FULL_SHARE]
    assert step_up(999_999, 1) == step_up(999_999, 2) == FULL_SHARE
    assert step_up(5, 3) == 8
    assert step_down(500, 100, 450) == 450
    assert step_down(500, 100, 350) == 400


def test_ramp_share__steps_of_a_microsecond__starts_with_one_step() -> None:
    assert [ramp_share(3, 1, elapsed_us) for elapsed_us in (-1, 0, 1, 2, 3)] == [
        *(250_000, 250_000, 500_000, 750_000),
        FULL_SHARE,
    ]
