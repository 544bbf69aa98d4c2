"""A worker's part of a limit while it is on its own: all parts together are the limit."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stores.switchable import ByHand, by_hand, moved
from tests.support import examples, redis_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy, StateTypeError, StateUnavailableError
from comporta.limits.lease import REFUSED, LeaseOperation
from comporta.limits.operation import SPACE, LimitOperation, Question
from comporta.limits.rule import CHARGE
from comporta.limits.share import RETRY_US, Always, Share, rule_alone
from comporta.stores.base import Outage
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

START_US = 10**12


def outage(workers: int, **more: bool) -> Outage:
    return Outage(0.0, START_US, "gone", workers, **more)


def granted_by(share: Share, times_us: list[int]) -> list[int]:
    """Return the moments at which a worker that asks at these moments is granted one."""
    state, granted = None, []
    for now_us in times_us:
        new, wait_us = share.step(state, now_us, 1)
        state = new or state
        if wait_us == 0:
            granted.append(now_us)
    return granted


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize(("capacity", "workers"), [(100, 4), (10, 4), (3, 8), (1, 5), (1000, 7)])
def test_shares__evenly_loaded__give_the_rate_and_never_more_than_one_token_each_above_it(
    strategy: LimitStrategy, capacity: int, workers: int
) -> None:
    config = LimitConfig(capacity, capacity, 1, strategy)
    share = Share(config.rule(), "n", outage(workers))
    seconds = 4 * ceil(workers / capacity)
    step_us = 500
    times = [START_US + step_us * number for number in range(seconds * 1_000_000 // step_us)]
    total = workers * len(granted_by(share, times))
    due = capacity * seconds
    assert total <= due + workers
    assert total >= 0.9 * due - workers


@settings(max_examples=examples(60), deadline=None)
@given(
    strategy=st.sampled_from([LimitStrategy.FIXED_WINDOW, LimitStrategy.SLIDING_WINDOW]),
    capacity=st.integers(1, 300),
    workers=st.integers(1, 50),
    pauses=st.lists(st.integers(1, 900_000), min_size=20, max_size=300),
)
def test_share_of_a_window__in_any_interval_as_long__is_its_part_rounded_up(
    strategy: LimitStrategy, capacity: int, workers: int, pauses: list[int]
) -> None:
    share = Share(LimitConfig(1, capacity, 1, strategy).rule(), "n", outage(workers))
    now_us, times = START_US, []
    for pause_us in pauses:
        now_us += pause_us
        times += [now_us] * 5
    granted = granted_by(share, times)
    for number, start_us in enumerate(granted):
        within = [moment for moment in granted[number:] if moment < start_us + 1_000_000]
        assert len(within) <= -(-capacity // workers)


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_share__at_the_moment_of_the_switch__is_empty(strategy: LimitStrategy) -> None:
    share = Share(LimitConfig(10, 10, 1, strategy).rule(), "n", outage(2))
    assert share.step(None, START_US, 1)[1] > 0
    assert share.view(None, START_US).remaining < 5
    assert granted_by(share, [START_US + 200_000]) == [START_US + 200_000]


def test_share__of_a_long_window__opens_bit_by_bit() -> None:
    """An hour's window that started empty as a whole would shut out everybody for an hour."""
    share = Share(LimitConfig(1, 3600, 3600, LimitStrategy.FIXED_WINDOW).rule(), "n", outage(2))
    times = [START_US + 100_000 * number for number in range(600)]  # a minute
    assert 25 <= len(granted_by(share, times)) <= 31


def test_share__given_back__is_no_more_than_it_granted() -> None:
    share = Share(LimitConfig(10, 10, 1).rule(), "n", outage(1))
    state, _ = share.step(None, START_US + 500_000, 3)
    assert state is not None
    assert share.give(state, START_US + 500_000, 99)[0] == 0
    assert share.view(share.give(state, START_US + 500_000, 99), START_US + 500_000).remaining == 5
    assert share.revised(b"1 1 1 1 x") is share
    assert share.changed(share.numbers) is share


def test_share__reports__what_would_not_be_back_by_now() -> None:
    rule = LimitConfig(10, 10, 1).rule()
    share = Share(rule, "n", outage(2))
    state, _ = share.step(None, START_US + 1_000_000, 3)
    assert state is not None
    report, settled = share.settle(f"{SPACE}:n", "k", state, START_US + 1_000_000)
    assert report is not None
    assert report.questions == [Question(rule, "n", "k", 3)]
    assert report.patience_us == CHARGE
    assert settled is not None
    assert share.settle("", "k", settled, START_US + 1_000_000) == (None, None)
    much_later_us = START_US + 60_000_000
    report, settled = share.settle("", "k", state, much_later_us)
    assert report is None
    assert settled is not None
    assert share.expires_us(state) > much_later_us


def test_policy__open_closed_and_share__decide_what_to_do_alone() -> None:
    rule = LimitConfig(10, 10, 1).rule()
    alone = outage(2)
    grants = rule_alone(rule, "n", "open", alone)
    refuses = rule_alone(rule, "n", "closed", alone)
    assert isinstance(grants, Always)
    assert grants.step(None, START_US, 5) == (None, 0)
    assert grants.view(None, START_US).remaining == 10
    assert refuses.step(None, START_US, 5) == (None, RETRY_US)
    assert refuses.step(None, START_US, 5, 2 * RETRY_US) == (None, 2 * RETRY_US + 1)
    assert refuses.view(None, START_US).remaining == 0
    assert refuses.give((1,), START_US, 5) == (1,)
    assert refuses.expires_us(()) == 0
    assert refuses.revised(None) is refuses
    assert refuses.changed(refuses.numbers) is refuses
    assert refuses.at(START_US) == (refuses, 0, 10)
    assert isinstance(rule_alone(rule, "n", "share", alone), Share)
    assert isinstance(rule_alone(rule, "n", "open", outage(2, denied=True)), Share)
    full = rule_alone(rule, "n", "open", outage(2, full=True))
    assert full.step(None, START_US, 1)[1] == RETRY_US


@pytest.mark.parametrize("policy", ["fallback", "Open", "", None, 1])
def test_policy__unknown__is_refused_by_name(policy: object) -> None:
    with pytest.raises(ValueError, match="fallback must be one of share, open, closed, got"):
        LimitConfig(10, 10, fallback=policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_charge__on_an_empty_limit__makes_a_bounded_debt(strategy: LimitStrategy) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    rule = LimitConfig(10, 10, 1, strategy).rule()

    def ask(amount: int, patience_us: int = 0) -> int:
        [answer] = store.apply(LimitOperation([Question(rule, "n", "k", amount)], patience_us))
        return answer.wait_us

    for _ in range(10):
        ask(1)
    for _ in range(100):
        ask(10, CHARGE)
    clock.advance(2.2)  # an empty bucket for one second of debt, and a little
    assert ask(1) == 0


def test_limiter__alone__answers_every_verb() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store, "verbs")
    primary.error = StateUnavailableError("gone")
    verbs = limiter.sync
    assert not verbs.acquire("k")
    assert limiter.fallback is not None
    clock.advance(1)
    assert verbs.acquire("k")
    assert verbs.acquire("k", 3)
    assert verbs.decide("k").allowed
    verbs.release("k")
    assert verbs.peek("k").remaining == 6
    stats = verbs.stats("k")
    assert (stats.tokens_available, stats.requests_last_minute, stats.limit) == (6, 4, 10)
    assert stats.fallback == limiter.fallback
    assert verbs.acquire("k", 10, timeout=5)
    with pytest.raises(StateUnavailableError, match="not possible without the shared state"):
        verbs.change("5/s")


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_share__cost_above_it__is_reported_whole(strategy: LimitStrategy) -> None:
    share = Share(LimitConfig(10, 10, 1, strategy).rule(), "n", outage(8))
    cost = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 5
    now_us = START_US + 60_000_000
    state, wait_us = share.step(None, now_us, cost)
    assert wait_us == 0
    assert state is not None
    report, _ = share.settle("", "k", state, now_us)
    assert report is not None
    assert report.questions[0].amount == cost


def test_decide__on_a_key_that_cannot_be_used__goes_by_the_changed_limit() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    primary.__class__ = type("Far", (type(primary),), {"bind": property(lambda _: None)})
    limiter = BaseLimiter(LimitConfig(100, 100), store, "changed")
    limiter.sync.change("2/s")
    moved(store)
    primary.error = StateTypeError("something else")
    limiter.sync.decide("k")
    clock.advance(10)
    assert sum(limiter.sync.decide("k").allowed for _ in range(10)) == 2


def test_cost__above_the_configured_limit_but_not_the_raised_one__waits_in_an_outage(valkey: Server) -> None:
    with redis_store(valkey) as primary:
        store = FailoverStore.of(primary, primary.address)
        store.keeper = ByHand(store)
        limiter = BaseLimiter(LimitConfig(10, 10), store, "raised")
        limiter.sync.change("100/s")
        assert limiter.sync.acquire("k", 50)
        moved(store)
        store.keeper.census.heard(8)
        store.fell(StateUnavailableError("gone"))
        assert not limiter.sync.acquire("k", 50)
        assert limiter.sync.acquire("k", 50, timeout=30)


@pytest.mark.parametrize("change", [b"", b"5", b"a b c d", b"0 0 0 0 x", b"5 0 0 0 x", b"-1 1 1 1", b"\xff"])
def test_change__written_by_hand_and_wrong__is_none(change: bytes) -> None:
    for strategy in LimitStrategy:
        for lease in (False, True):
            rule = LimitConfig(10, 10, 1, strategy, lease=lease).rule()
            assert rule.revised(change) is rule


def test_lease__in_an_outage__is_taken_from_the_share_one_by_one() -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    limiter = BaseLimiter(LimitConfig(10, 10, lease=True), store, "leased")
    assert limiter.sync.acquire("k")
    primary.error = StateUnavailableError("gone")
    clock.advance(0.1)  # what was in hand has ended
    assert not limiter.sync.acquire("k")
    clock.advance(1)
    assert sum(limiter.sync.acquire("k") for _ in range(20)) == 10
    assert limiter.verbs.leases is not None
    limiter.verbs.leases.give_back()
    nothing = LeaseOperation(limiter.verbs.leases._lender, "k", 0, 0)
    assert store.apply(nothing) == REFUSED
