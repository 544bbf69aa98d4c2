"""The exact numbers of windows, and what all strategies count alike."""

from __future__ import annotations

from struct import Struct

import pytest

from comporta.limits.strategies.base import EndedLease, LeaseGrant, LimitParams, LimitUsage, Strategy
from comporta.limits.strategies.calendar_window import calendar_strategy
from comporta.limits.strategies.fixed_window import FixedWindowStrategy
from comporta.limits.strategies.leaky_bucket import LeakyBucketStrategy
from comporta.limits.strategies.recent_traffic import NO_PAST, SLICE_US
from comporta.limits.strategies.sliding_window import LogCodec, SlidingWindowStrategy
from comporta.limits.strategies.token_bucket import LeasedTokenBucketStrategy, TokenBucketStrategy
from comporta.stores.base import PINNED_US, State

UNIT = 100_000
HOUR_US = 3_600_000_000
NOW_US = 100 * SLICE_US
FIXED = FixedWindowStrategy(3, HOUR_US)
SLIDING = SlidingWindowStrategy(3, HOUR_US)
STRATEGIES = (
    TokenBucketStrategy(3, 1, UNIT),
    LeasedTokenBucketStrategy(3, 1, UNIT, 50_000),
    LeakyBucketStrategy(3, 1, UNIT),
    FIXED,
    SLIDING,
    calendar_strategy("day", "00:00", "UTC")(3),
)

each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)


def take(strategy: Strategy, units: int, now_us: int = NOW_US) -> State:
    state, wait_us = strategy.step(None, now_us, units)
    assert state is not None
    assert wait_us == 0
    return state


@each_strategy
def test_step__refused_at_the_moment_of_the_last_grant__stores_nothing(strategy: Strategy) -> None:
    state = take(strategy, 3)
    unchanged, wait_us = strategy.step(state, NOW_US, 1)
    assert unchanged is None
    assert wait_us > 0


@each_strategy
def test_step__refused_after_the_clock_went_back__stores_the_time_and_takes_nothing(
    strategy: Strategy,
) -> None:
    at_us, back_us = NOW_US + 10, NOW_US + 5
    state = take(strategy, 3, at_us)
    moved, wait_us = strategy.step(state, back_us, 1)
    assert moved is not None
    assert wait_us > 0
    assert back_us in moved
    assert strategy.usage(moved, back_us)[:2] == strategy.available(moved, back_us)
    used, before = strategy.usage(moved, back_us), strategy.usage(state, at_us)
    assert (used.remaining, used.recent) == (before.remaining, before.recent)
    assert used.reset_us in {before.reset_us, before.reset_us + 5}  # a calendar window ends when it ends


@each_strategy
@pytest.mark.parametrize("later_us", [SLICE_US - 1, SLICE_US, SLICE_US + 1])
def test_step__next_slice__moves_the_count_to_the_past(strategy: Strategy, later_us: int) -> None:
    state, _ = strategy.step(take(strategy, 1), NOW_US + later_us, 2)
    assert state is not None
    shifted = (1).to_bytes(16, "little")
    assert (shifted in state, NO_PAST in state) == (later_us >= SLICE_US, later_us < SLICE_US)
    assert (2 if later_us >= SLICE_US else 3) in state[2:5]


@each_strategy
def test_usage__no_state__is_unused(strategy: Strategy) -> None:
    assert strategy.usage(None, NOW_US) == LimitUsage(3, 0, 0)
    assert strategy.available(None, NOW_US) == (3, 0)


@each_strategy
def test_release__all_that_was_taken__leaves_it_unused(strategy: Strategy) -> None:
    released = strategy.release(take(strategy, 2), NOW_US, 2)
    assert strategy.usage(released, NOW_US) == LimitUsage(3, 0, 0)


@pytest.mark.parametrize("strategy", [FIXED, SLIDING], ids=["fixed", "sliding"])
def test_window__used_up__is_pinned_and_expires_after_its_length(strategy: Strategy) -> None:
    assert strategy.expires_us(take(strategy, 2)) == NOW_US + HOUR_US
    assert strategy.retention_us(take(strategy, 2)) == NOW_US + HOUR_US
    assert strategy.retention_us(take(strategy, 3)) == NOW_US + HOUR_US + PINNED_US
    assert strategy.usage(take(strategy, 2), NOW_US + 5) == LimitUsage(1, HOUR_US - 5, 2)


def test_window__shorter_than_a_minute__is_kept_for_a_minute() -> None:
    for strategy in (FixedWindowStrategy(3, 1000), SlidingWindowStrategy(3, 1000)):
        assert strategy.retention_us(take(strategy, 1)) == NOW_US + 60_000_000
        assert strategy.pinned_ttl_us == 60_000_000 + PINNED_US


def test_window__params__are_those_of_the_scripts() -> None:
    assert FixedWindowStrategy(3, HOUR_US).params == LimitParams(3, 0, 0, HOUR_US)
    assert SlidingWindowStrategy(3, HOUR_US).params == LimitParams(3, 0, 1, HOUR_US)
    assert SlidingWindowStrategy(257, 256_000).params == LimitParams(257, 0, 1, 256_000)
    assert SlidingWindowStrategy(258, 256_000).params == LimitParams(258, 0, 1000, 256_000)
    assert SlidingWindowStrategy(258, 256_001).params == LimitParams(258, 0, 1001, 256_001)


def test_fixed_window__lease__ends_with_the_window_and_is_returned_only_into_it() -> None:
    state = take(FIXED, 3)
    assert FIXED.grant_lease(state, NOW_US + 5, 2, 1000) == LeaseGrant(state, 1000, NOW_US)
    assert FIXED.grant_lease(state, NOW_US + HOUR_US - 5, 2, 1000) == LeaseGrant(state, 5, NOW_US)
    ended = EndedLease(NOW_US, 2, 2)
    returned = FIXED.return_lease(state, NOW_US + HOUR_US - 1, ended, 1000)
    assert returned is not None
    assert returned[:3] == (1, NOW_US, NOW_US + HOUR_US - 1)
    assert FIXED.return_lease(state, NOW_US, ended, 1000) is not None
    assert FIXED.return_lease(state, NOW_US + HOUR_US, ended, 1000) is None
    assert FIXED.return_lease(state, NOW_US - 1, ended, 1000) is None
    assert FIXED.return_lease(state, NOW_US, ended._replace(lease_id=NOW_US - 1), 1000) is None


def test_sliding_window__lease__may_be_returned_within_its_time() -> None:
    longest_us = HOUR_US // 202
    state = take(SLIDING, 3)
    assert SLIDING.grant_lease(state, NOW_US, 2, 1000) == LeaseGrant(state, 1000, NOW_US)
    assert SLIDING.grant_lease(state, NOW_US, 2, HOUR_US) == LeaseGrant(state, longest_us, NOW_US)
    ended = EndedLease(NOW_US, 2, 2)
    for ttl_us, last_us in ((1000, 1000), (HOUR_US, longest_us)):
        returned = SLIDING.return_lease(state, NOW_US + last_us, ended, ttl_us)
        assert returned is not None
        assert returned[0] == 1
        assert SLIDING.return_lease(state, NOW_US + last_us + 1, ended, ttl_us) is None
    assert SLIDING.return_lease(state, NOW_US, ended, 1000) is not None
    assert SLIDING.return_lease(state, NOW_US - 1, ended, 1000) is None


def test_sliding_window__size_of_a_state__has_room_for_the_whole_log() -> None:
    assert [LogCodec(entries).size for entries in (36, 257)] == [38 + 36 * 12, 38 + 257 * 12]
    assert SlidingWindowStrategy(3, HOUR_US).codec.size == 38 + 36 * 12


def test_sliding_window__limit_raised__keeps_the_size_of_its_log() -> None:
    raised = SLIDING.with_params(LimitParams(1000, 0, 1, 35_000))
    assert (raised.capacity, raised.window_us, raised.entries, raised.grain_us) == (1000, 35_000, 36, 1000)


def test_sliding_window__clock_went_back__moves_every_entry_to_the_new_time() -> None:
    state: State | None = None
    for later_us in range(3):
        state, _ = SLIDING.step(state, NOW_US + later_us, 1)
    assert state is not None
    moved, wait_us = SLIDING.step(state, NOW_US - 5, 1)
    entry = Struct("<qI").pack(NOW_US - 5, 1)
    assert (moved, wait_us) == ((3, NOW_US - 5, 0, NO_PAST, 3 * entry), HOUR_US)


def entries(*pairs: tuple[int, int]) -> bytes:
    return b"".join(Struct("<qI").pack(*pair) for pair in pairs)


def test_sliding_window__credit_of_a_grant_earlier_in_its_grain__changes_the_shared_entry() -> None:
    window = SlidingWindowStrategy(1000, 256_000)  # entries for every millisecond
    state, _ = window.step(None, 1_000_200, 5)
    state, _ = window.step(state, 1_000_500, 5)
    credited = window.settle(state, 1_000_600, -2, 400)
    assert credited is not None
    assert (credited[0], credited[-1]) == (8, entries((1_000_500, 8)))


def test_sliding_window__debit_of_a_call_one_window_old__counts_from_now() -> None:
    state = take(SLIDING, 1)
    for age_us, log in (
        (HOUR_US, entries((NOW_US, 1), (NOW_US + 1000, 2))),
        (HOUR_US - 1, entries((NOW_US, 3))),
    ):
        settled = SLIDING.settle(state, NOW_US + 1000, 2, age_us)
        assert settled is not None
        assert settled[-1] == log


def test_sliding_window__log_full_after_the_limit_was_raised__shares_its_last_entry() -> None:
    window, state = SlidingWindowStrategy(36, 35_000), None
    for later_us in range(36):
        state, _ = window.step(state, 2_000_000 + later_us, 1)
    raised = window.with_params(LimitParams(1000, 0, 1, 35_000))
    shared, _ = raised.step(state, 2_005_000, 1)
    assert shared is not None
    assert len(shared[-1]) == 36 * 12
    assert shared[-1][-24:] == entries((2_000_034, 1), (2_005_000, 2))


def test_outage_share__of_a_window__starts_used_up_evenly() -> None:
    share, state = SlidingWindowStrategy(2, 10).outage_share(1, 100)
    assert (share.capacity, share.window_us) == (2, 10)
    assert state == (2, 100, 0, NO_PAST, entries((95, 1), (100, 1)))


@pytest.mark.parametrize(("workers", "largest"), [(1, 120), (50, 120), (60, 100)])
def test_leases__of_a_window__are_a_hundredth_of_it_or_half_of_a_workers_part(
    workers: int, largest: int
) -> None:
    size = FixedWindowStrategy(12_000, HOUR_US).lease_size_max(workers)
    assert (size, type(size)) == (largest, int)


@pytest.mark.parametrize("strategy", [FIXED, SLIDING], ids=["fixed", "sliding"])
def test_pace__of_a_window__is_a_window_per_capacity(strategy: FixedWindowStrategy) -> None:
    assert [strategy.pace_us(units) // HOUR_US for units in (1, 2, 3, 4, 6, 7)] == [0, 0, 0, 1, 1, 2]
