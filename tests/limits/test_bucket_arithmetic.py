"""The exact numbers of buckets: rates as fractions, and how long their states are kept."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from comporta import LimitConfig
from comporta.clock import SECOND_US
from comporta.limits.strategies.base import CHARGE, EndedLease, LimitParams
from comporta.limits.strategies.bucket import LEVEL_MAX, exact_rate
from comporta.limits.strategies.leaky_bucket import LeakyBucketStrategy
from comporta.limits.strategies.recent_traffic import NO_PAST
from comporta.limits.strategies.token_bucket import LeasedTokenBucketStrategy, TokenBucketStrategy
from comporta.stores.base import PINNED_US, State

UNIT = 100_000
TOKENS = TokenBucketStrategy(50, 1, UNIT)  # 10/s
TURNS = LeakyBucketStrategy(50, 1, UNIT)


def rate_of(per_us: int, unit: int) -> Fraction:
    return Fraction(per_us, unit) * 1_000_000


def test_exact_rate__pi__is_the_fraction_that_is_closer_than_a_float_can_tell() -> None:
    assert rate_of(*exact_rate(math.pi, 1)) == Fraction(3_126_535, 995_207)


def test_exact_rate__root_of_two__has_no_simple_fraction_and_is_rounded_down() -> None:
    per_us, unit = exact_rate(math.sqrt(2), 1)
    assert (
        rate_of(per_us, unit) == Fraction(int(Fraction(math.sqrt(2)) / 1_000_000 * 2**51), 2**51) * 1_000_000
    )
    assert rate_of(per_us, unit) < Fraction(math.sqrt(2))


def test_exact_rate__one_in_a_million_seconds__is_the_longest_simple_interval() -> None:
    assert exact_rate(1 / 1_000_000, 1) == (1, 10**12)
    assert exact_rate(1 / 1_000_001, 1)[1] > 10**13


def test_exact_rate__large_bucket__counts_twice_its_capacity() -> None:
    assert exact_rate(math.sqrt(2), 10**9) == (3, 2_251_799)
    assert 2 * 10**9 * 2_251_799 <= LEVEL_MAX < 2 * 10**9 * 2_251_800


def test_exact_rate__too_slow_to_count__says_how_many_years() -> None:
    with pytest.raises(
        ValueError, match="within 70 years, got 1000000000 at 1e-09 per second: 31709791984 years"
    ):
        exact_rate(1e-9, 10**9)


@pytest.mark.parametrize(("units", "expected_us"), [(1, 333_333), (2, 666_666), (3, 1_000_000)])
def test_pace__rate_of_three_a_second__is_whole_microseconds(units: int, expected_us: int) -> None:
    pace_us = TokenBucketStrategy(5, *exact_rate(3, 5)).pace_us(units)
    assert (pace_us, type(pace_us)) == (expected_us, int)


def test_expiry__no_debt__is_the_time_to_live_after_the_last_change() -> None:
    assert TURNS.expires_us((0, 7, UNIT, 0, NO_PAST)) == 7 + TURNS.ttl_us
    assert TURNS.expires_us((TURNS.level_max, 7, UNIT, 0, NO_PAST)) == 7 + TURNS.ttl_us
    assert TOKENS.expires_us((0, 7, UNIT, 0, NO_PAST)) == 7 + TOKENS.ttl_us


def test_expiry__debt__adds_the_time_that_pays_it_back() -> None:
    assert TURNS.expires_us((TURNS.level_max + 3, 7, UNIT, 0, NO_PAST)) == 7 + TURNS.ttl_us + 3
    assert TOKENS.expires_us((-3, 7, UNIT, 0, NO_PAST)) == 7 + TOKENS.ttl_us + 3
    assert TOKENS.expires_us((-3, 7, UNIT // 2, 0, NO_PAST)) == 7 + TOKENS.ttl_us + 6


@pytest.mark.parametrize(
    ("level", "pinned_us"), [(UNIT, 0), (UNIT - 1, PINNED_US), (0, PINNED_US), (-5, PINNED_US + 5)]
)
def test_retention__of_a_token_bucket__is_pinned_without_a_whole_token(level: int, pinned_us: int) -> None:
    assert TOKENS.retention_us((level, 7, UNIT, 0, NO_PAST)) == 7 + TOKENS.ttl_us + pinned_us


@pytest.mark.parametrize(
    ("level", "pinned_us"),
    [
        (0, 0),
        (50 * UNIT - 1, 0),
        (50 * UNIT, PINNED_US),
        (51 * UNIT, PINNED_US),
        (51 * UNIT + 9, PINNED_US + 9),
    ],
)
def test_retention__of_a_leaky_bucket__is_pinned_without_a_place(level: int, pinned_us: int) -> None:
    assert TURNS.retention_us((level, 7, UNIT, 0, NO_PAST)) == 7 + TURNS.ttl_us + pinned_us


def test_charge__bucket_with_leases__leaves_a_debt_of_at_most_one_second() -> None:
    leased = LeasedTokenBucketStrategy(50, 1, UNIT, 50_000)
    state, wait_us = leased.step(None, 1_000_000, 200, CHARGE)
    assert state is not None
    assert (state[0], wait_us) == (-SECOND_US, 0)
    assert leased.step(state, 1_000_000, 200, CHARGE)[0] == (*state[:3], 400, *state[4:])


def test_turns__more_than_the_queue_has_places__wait_for_an_empty_queue() -> None:
    assert TURNS.step((1, 7, UNIT, 0, NO_PAST), 7, 51, 10) == (None, 11)
    assert TURNS.step((0, 7, UNIT, 0, NO_PAST), 7, 52, 10)[1] == 0


def test_turns__queue_full_and_clock_went_back__waits_longer_than_the_caller_would() -> None:
    state = (51 * UNIT, 7, UNIT, 4, NO_PAST)
    assert TURNS.step(state, 6, 1, 10**8) == ((51 * UNIT, 6, UNIT, 4, NO_PAST), 10**8 + 1)


@pytest.mark.parametrize(("capacity", "workers", "expected"), [(1, 4, 1), (9, 4, 2), (50, 1, 50)])
def test_outage_share__of_buckets__is_a_part_of_capacity_and_rate(
    capacity: int, workers: int, expected: int
) -> None:
    for kind, level in ((TokenBucketStrategy, 0), (LeakyBucketStrategy, UNIT * workers)):
        share, state = kind(capacity, 1, UNIT).outage_share(workers, 7)
        assert type(share) is kind
        assert (share.capacity, type(share.capacity)) == (expected, int)
        assert (share.per_us, share.unit) == (1, UNIT * workers)
        assert state == (level, 7, UNIT * workers, 0, NO_PAST)


def leased_state(level: int, now_us: int, number: int, current: int, before: int) -> State:
    return (level, now_us, UNIT, 0, NO_PAST, number, current, before)


def test_leases__of_a_configuration__have_slices_of_half_their_time() -> None:
    leased = LimitConfig.parse("10/s burst 50", lease=1.0).build_strategy()
    assert isinstance(leased, LeasedTokenBucketStrategy)
    assert (leased.slice_us, type(leased.slice_us)) == (500_000, int)
    assert leased.params == LimitParams(50, 1, UNIT, 500_000)
    assert leased.with_params(LimitParams(7, 2, 9, 0)).params == LimitParams(7, 2, 9, 500_000)
    assert leased.with_params(LimitParams(7, 2, 9, 3)).params == LimitParams(7, 2, 9, 3)
    assert type(LimitConfig.parse("10/s").build_strategy()) is TokenBucketStrategy


@pytest.mark.parametrize(("workers", "largest"), [(1, 25), (3, 8), (25, 1), (26, 0)])
def test_leases__largest__is_half_of_the_capacity_for_all_workers(workers: int, largest: int) -> None:
    size = LeasedTokenBucketStrategy(50, 1, UNIT, 50_000).lease_size_max(workers)
    assert (size, type(size)) == (largest, int)


def test_leases__granted_in_two_slices__leave_less_room_until_each_has_passed() -> None:
    leased = LeasedTokenBucketStrategy(50, 1, UNIT, 1_000_000)
    state = leased_state(0, 5_000_000, 5, 20, 10)
    capacities = [leased.available_capacity(state, at_us) for at_us in (5_000_000, 5_999_999, 6_000_000)]
    assert capacities == [20, 20, 30]
    assert [leased.available_capacity(state, at_us) for at_us in (6_999_999, 7_000_000)] == [30, 50]
    assert leased.available_capacity(None, 0) == 50
    assert leased.available_capacity(leased_state(0, 0, 0, 60, 0), 0) == 0
    assert leased.available_capacity(state, 4_999_999) == 50, "the clock went back"


LEASED = LeasedTokenBucketStrategy(50, 1, UNIT, 1_000_000)


def test_leases__units_released__leave_the_room_of_leased_ones_in_the_stored_level() -> None:
    released = LEASED.release(leased_state(20 * UNIT, 5_000_000, 5, 30, 0), 5_000_000, 10)
    assert released[0] == 20 * UNIT


def test_leases__level_from_the_end_of_a_slice__counts_by_the_room_of_the_next_one() -> None:
    state = leased_state(35 * UNIT, 6_000_000, 5, 10, 20)
    assert LEASED.available(state, 6_000_000) == (35, 2_000_000)
    assert LEASED.available(state, 6_500_000) == (40, 1_500_000), "10 of 50 are leased until 7 s"


def test_leases__as_many_in_this_slice_as_in_the_one_before__take_room() -> None:
    assert LEASED.available(leased_state(50 * UNIT, 5_000_000, 5, 10, 10), 5_000_000)[0] == 30


def test_leases__of_slices_in_the_future__take_no_room() -> None:
    assert LEASED.available(leased_state(50 * UNIT, 9_000_000, 9, 10, 10), 5_000_000)[0] == 50


def test_leases__more_than_a_lowered_capacity__leave_no_room() -> None:
    assert LEASED.available(leased_state(0, 5_000_000, 5, 60, 0), 5_900_000)[0] == 0


def test_leases__granted__are_added_to_the_slice_of_now() -> None:
    leased = LeasedTokenBucketStrategy(50, 1, UNIT, 1_000_000)
    state = leased_state(30 * UNIT, 6_000_000, 5, 4, 3)
    granted, ttl_us, number = leased.grant_lease(state, 6_000_000, 2, 77)
    assert (granted, ttl_us, number) == (leased_state(30 * UNIT, 6_000_000, 6, 2, 4), 1_000_000, 6)
    assert leased.grant_lease(state, 6_000_000, 0, 77)[0] == state


@pytest.mark.parametrize(
    ("number", "lent", "unused", "expected"),
    [
        (5, 4, 3, (33 * UNIT, 0, 3)),  # of this slice
        (4, 2, 1, (31 * UNIT, 4, 1)),  # of the slice before
        (5, 6, 3, (31 * UNIT, 0, 3)),  # two of six were forgotten, so only one of three returns
        (4, 9, 3, (30 * UNIT, 4, 0)),
    ],
)
def test_leases__returned__leave_the_ledger_and_refill_the_bucket(
    number: int, lent: int, unused: int, expected: tuple[int, int, int]
) -> None:
    leased = LeasedTokenBucketStrategy(50, 1, UNIT, 1_000_000)
    state = leased_state(30 * UNIT, 5_000_000, 5, 4, 3)
    returned = leased.return_lease(state, 5_000_000, EndedLease(number, lent, unused), 77)
    level, current, before = expected
    assert returned == leased_state(level, 5_000_000, 5, current, before)


@pytest.mark.parametrize("number", [3, 6])
def test_leases__returned_too_late__change_nothing(number: int) -> None:
    leased = LeasedTokenBucketStrategy(50, 1, UNIT, 1_000_000)
    state = leased_state(30 * UNIT, 5_000_000, 5, 4, 3)
    assert leased.return_lease(state, 5_000_000, EndedLease(number, 1, 1), 77) is None


def test_leases__bucket_waits_for_room__fills_when_the_ledger_forgets() -> None:
    leased = LeasedTokenBucketStrategy(50, UNIT, UNIT, 1_000_000)  # a token every microsecond
    state = leased_state(0, 5_000_000, 5, 20, 10)
    assert leased.usage(state, 5_000_000)[:2] == (0, 2_000_020)
    assert leased.usage(state, 5_000_100)[:2] == (20, 1_999_920)
    assert leased.usage(state, 6_000_005)[:2] == (25, 1_000_015)
    assert leased.usage(state, 7_000_005)[:2] == (35, 15)
    assert leased.step(state, 5_000_000, 20) == (None, 20)
    assert leased.step(state, 5_000_000, 21) == (None, 1_000_001)
    assert leased.step(state, 5_000_000, 31) == (None, 2_000_001)


def test_tokens__used__are_those_that_are_not_refilled_yet() -> None:
    assert TOKENS.used_units((20 * UNIT + 1, 7, UNIT, 0, NO_PAST), 7) == 30
    assert TOKENS.used_units((-UNIT, 7, UNIT, 0, NO_PAST), 7) == 51
    assert TURNS.used_units((20 * UNIT + 1, 7, UNIT, 0, NO_PAST), 7) == 21


def test_tokens__of_a_debt__are_none_and_take_longer_to_fill() -> None:
    assert TOKENS.available((-5, 7, UNIT, 0, NO_PAST), 7) == (0, 50 * UNIT + 5)
    assert TOKENS.available((-5, 7, UNIT, 0, NO_PAST), 6) == (0, 50 * UNIT + 5)
    assert TOKENS.available((UNIT // 2, 7, UNIT // 2, 0, NO_PAST), 8) == (1, 49 * UNIT - 1)
    assert TOKENS.available((50 * UNIT, 7, UNIT, 0, NO_PAST), 9) == (50, 0)


def test_charge__any_rate__leaves_a_debt_of_at_most_one_second_of_it() -> None:
    for bucket in (TokenBucketStrategy(50, 2, UNIT), LeasedTokenBucketStrategy(50, 2, UNIT, 50_000)):
        state, wait_us = bucket.step(None, 1_000_000, 1000, CHARGE)
        assert state is not None
        assert (state[0], type(state[0]), wait_us) == (-2 * SECOND_US, int, 0)


def test_tokens__of_the_smallest_unit__are_counted() -> None:
    assert TokenBucketStrategy(5, 1, 1).available((1, 7, 1, 0, NO_PAST), 7) == (1, 4)


def test_leases__first_grant__stores_an_empty_ledger() -> None:
    leased = LeasedTokenBucketStrategy(50, 1, UNIT, 50_000)
    assert leased.step(None, 5_000_000, 1) == ((49 * UNIT, 5_000_000, UNIT, 1, NO_PAST, 0, 0, 0), 0)
