"""A worker's share of a limit during an outage: all shares together are the limit."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.stores.manual_heartbeat import ManualHeartbeat, manual_failover, run_heartbeat
from tests.support import command, max_examples, redis_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy, StateTypeError, StateUnavailableError
from comporta.limits.charge import ChargeOperation
from comporta.limits.leases.operation import REFUSED, LeaseOperation
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.scripts import LIMIT_SPACE
from comporta.limits.strategies.base import LimitParams, LimitUsage
from comporta.limits.strategies.leaky_bucket import LeakyBucketStrategy
from comporta.limits.strategies.outage_share import (
    CLOSED_RETRY_US,
    ConstantStrategy,
    OutageShare,
    fallback_strategy,
)
from comporta.limits.strategies.recent_traffic import NO_PAST
from comporta.limits.strategies.token_bucket import TokenBucketStrategy
from comporta.stores.base import Store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.stores.records import NEVER_US
from comporta.testing import ManualClock, Server

START_US = 10**12


def outage(workers: int, **more: bool) -> Outage:
    return Outage(0.0, START_US, "gone", workers, **more)


def granted_by(share: OutageShare, times_us: list[int]) -> list[int]:
    """Return the times at which a worker that calls at these times is granted one unit."""
    state, granted = None, []
    for now_us in times_us:
        new, wait_us = share.step(state, now_us, 1)
        state = new or state
        if wait_us == 0:
            granted.append(now_us)
    return granted


@pytest.mark.unmeasured
@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize(("capacity", "workers"), [(100, 4), (10, 4), (3, 8), (1, 5), (1000, 7)])
def test_shares__evenly_loaded__keep_the_rate_plus_at_most_one_token_each(
    strategy: LimitStrategy, capacity: int, workers: int
) -> None:
    config = LimitConfig(capacity, capacity, 1, strategy)
    share = OutageShare(config.build_strategy(), "n", outage(workers))
    seconds = 4 * ceil(workers / capacity)
    step_us = 500
    times = [START_US + step_us * number for number in range(seconds * 1_000_000 // step_us)]
    total = workers * len(granted_by(share, times))
    due = capacity * seconds
    assert total <= due + workers
    assert total >= 0.9 * due - workers


@pytest.mark.parametrize("strategy", LimitStrategy)
@pytest.mark.parametrize(("workers", "known"), [(4, 4), (4, 2), (4, 1), (9, 3)])
def test_shares__worker_count_too_low__exceed_the_rate_by_that_factor(
    strategy: LimitStrategy, workers: int, known: int
) -> None:
    share = OutageShare(LimitConfig(36, 36, 1, strategy).build_strategy(), "n", outage(known))
    seconds, step_us = 4, 1000
    times = [START_US + step_us * number for number in range(seconds * 1_000_000 // step_us)]
    total = workers * len(granted_by(share, times))
    due = 36 * seconds * workers / known
    assert 0.9 * due - workers <= total <= due + workers


@settings(max_examples=max_examples(60), deadline=None)
@given(
    strategy=st.sampled_from([LimitStrategy.FIXED_WINDOW, LimitStrategy.SLIDING_WINDOW]),
    capacity=st.integers(1, 300),
    workers=st.integers(1, 50),
    pauses=st.lists(st.integers(1, 900_000), min_size=20, max_size=300),
)
def test_share__of_a_window__is_its_part_rounded_up_in_any_interval(
    strategy: LimitStrategy, capacity: int, workers: int, pauses: list[int]
) -> None:
    share = OutageShare(LimitConfig(1, capacity, 1, strategy).build_strategy(), "n", outage(workers))
    now_us, times = START_US, []
    for pause_us in pauses:
        now_us += pause_us
        times += [now_us] * 5
    granted = granted_by(share, times)
    for number, start_us in enumerate(granted):
        within = [moment for moment in granted[number:] if moment < start_us + 1_000_000]
        assert len(within) <= -(-capacity // workers)


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_share__when_the_outage_begins__is_empty(strategy: LimitStrategy) -> None:
    share = OutageShare(LimitConfig(10, 10, 1, strategy).build_strategy(), "n", outage(2))
    assert share.step(None, START_US, 1)[1] > 0
    assert share.usage(None, START_US).remaining < 5
    assert granted_by(share, [START_US + 200_000]) == [START_US + 200_000]


def test_share__of_a_long_window__opens_gradually() -> None:
    """A window of an hour that started used up as a whole would refuse all callers for an hour."""
    share = OutageShare(
        LimitConfig(1, 3600, 3600, LimitStrategy.FIXED_WINDOW).build_strategy(), "n", outage(2)
    )
    times = [START_US + 100_000 * number for number in range(600)]  # a minute
    assert 25 <= len(granted_by(share, times)) <= 31


def test_share__released__is_at_most_what_it_granted() -> None:
    share = OutageShare(LimitConfig(10, 10, 1).build_strategy(), "n", outage(1))
    state, _ = share.step(None, START_US + 500_000, 3)
    assert state is not None
    assert share.release(state, START_US + 500_000, 99)[0] == 0
    assert share.usage(share.release(state, START_US + 500_000, 99), START_US + 500_000).remaining == 5
    assert share.with_override(b"1 1 1 1 x") is share
    assert share.with_params(share.params) is share


def test_share__report__charges_what_still_counts() -> None:
    limit_strategy = LimitConfig(10, 10, 1).build_strategy()
    share = OutageShare(limit_strategy, "n", outage(2))
    state, _ = share.step(None, START_US + 1_000_000, 3)
    assert state is not None
    report, reported = share.take_report(f"{LIMIT_SPACE}:n", "k", state, START_US + 1_000_000)
    assert report is not None
    report = report.as_report("w", 7)
    assert report.script_keys() == ["rate_limiter:n:k", "rate_limiter_change:n", "rate_limiter_reports:n:w"]
    assert report.script_args() == [7, 3, *limit_strategy.params, 3_600_000]
    assert reported is not None
    assert share.take_report("", "k", reported, START_US + 1_000_000) == (None, None)
    much_later_us = START_US + 60_000_000
    report, reported = share.take_report("", "k", state, much_later_us)
    assert report is None
    assert reported is not None
    assert share.expires_us(state) > much_later_us


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_share__divided_during_the_outage__reports_no_less_and_keeps_its_new_rate(
    strategy: LimitStrategy,
) -> None:
    larger = OutageShare(LimitConfig(8, 8, 1, strategy).build_strategy(), "n", outage(1))
    smaller = larger.with_outage(outage(4)._replace(first_worker_count=1))
    state = None
    now_us = START_US
    while now_us < START_US + 1_000_000:
        now_us += 1_000
        state = larger.step(state, now_us, 1)[0] or state
    assert state is not None
    before, _ = larger.take_report("", "k", state, now_us)
    after, _ = smaller.take_report("", "k", state, now_us)
    assert before is not None
    assert after is not None
    assert state[0] >= after.amount >= before.amount > 0
    granted = 0
    for _ in range(4_000):
        now_us += 1_000
        new, wait_us = smaller.step(state, now_us, 1)
        state = new or state
        granted += wait_us == 0
    assert 4 <= granted <= 4 * 8 / 4 + 1


def test_fallback__open_closed_and_share__decide_during_an_outage() -> None:
    limit_strategy = LimitConfig(10, 10, 1).build_strategy()
    two_workers = outage(2)
    grants = fallback_strategy(limit_strategy, "n", "open", two_workers)
    refuses = fallback_strategy(limit_strategy, "n", "closed", two_workers)
    assert isinstance(grants, ConstantStrategy)
    assert grants.step(None, START_US, 5) == (None, 0)
    assert grants.usage(None, START_US).remaining == 10
    assert refuses.step(None, START_US, 5) == (None, CLOSED_RETRY_US)
    assert refuses.step(None, START_US, 5, 2 * CLOSED_RETRY_US) == (None, 2 * CLOSED_RETRY_US + 1)
    assert refuses.usage(None, START_US).remaining == 0
    assert refuses.release((1,), START_US, 5) == (1,)
    assert refuses.expires_us(()) == 0
    assert refuses.with_override(None) is refuses
    assert refuses.with_params(refuses.params) is refuses
    assert refuses.effective_at(START_US) == (refuses, 0, 10)
    assert isinstance(fallback_strategy(limit_strategy, "n", "share", two_workers), OutageShare)
    assert isinstance(fallback_strategy(limit_strategy, "n", "open", outage(2, denied=True)), OutageShare)
    full = fallback_strategy(limit_strategy, "n", "open", outage(2, full=True))
    assert full.step(None, START_US, 1)[1] == CLOSED_RETRY_US


def test_closed_after__outage_goes_on__uses_the_share_and_then_closes() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    config = LimitConfig(10, 10, fallback="closed", closed_after=5)
    limiter = BaseLimiter(config, store, "strict").sync
    primary.error = StateUnavailableError("gone")
    assert not limiter.acquire("k")
    clock.advance(4)
    assert limiter.acquire("k")
    assert limiter.decide("k").allowed
    clock.advance(1.1)
    assert not limiter.acquire("k")
    decision = limiter.decide("k")
    assert (decision.allowed, decision.remaining, decision.retry_after) == (False, 0, 1)
    primary.error = None
    run_heartbeat(store)
    assert limiter.acquire("k")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"closed_after": 5}, "closed_after needs fallback='closed', got fallback='share'"),
        ({"closed_after": -1, "fallback": "closed"}, "closed_after must be"),
        ({"closed_after": 1e6, "fallback": "closed"}, "closed_after must be"),
    ],
)
def test_closed_after__impossible__is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LimitConfig(10, 10, **fields)


@pytest.mark.parametrize("policy", ["fallback", "Open", "", None, 1])
def test_fallback__unknown__is_refused(policy: object) -> None:
    with pytest.raises(ValueError, match="fallback must be one of 'share', 'open', 'closed', got"):
        LimitConfig(10, 10, fallback=policy)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_charge__empty_limit__leaves_a_bounded_debt(strategy: LimitStrategy) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    strategy_with_numbers = LimitConfig(10, 10, 1, strategy).build_strategy()

    def acquire() -> int:
        [reply] = store.apply(LimitOperation([LimitDemand(strategy_with_numbers, "n", "k", 1)]))
        return reply.wait_us

    for _ in range(10):
        acquire()
    for _ in range(100):
        store.apply(ChargeOperation(strategy_with_numbers, "n", "k", 10))
    clock.advance(2.2)  # repays one second of debt, and a little more
    assert acquire() == 0


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_charge__on_a_server__replies_as_in_memory(valkey: Server, strategy: LimitStrategy) -> None:
    clock = ManualClock(1_800_000_000)
    charge = ChargeOperation(LimitConfig(10, 10, 1, strategy).build_strategy(), "n", "k", 15)
    with redis_store(valkey, clock) as store:
        assert store.apply(charge) == MemoryStore(clock).apply(charge)
        assert charge.fallback(outage(2)) is None


def _apply_reports(store: Store, strategy: LimitStrategy) -> int:
    limit = LimitConfig(10, 10, 1, strategy).build_strategy()
    reports = [ChargeOperation(limit, "n", "k", 3).as_report("w", number) for number in (1, 2)]
    other = ChargeOperation(limit, "n", "k", 1).as_report("other", 1)
    assert store.apply_many(reports) == [True, True]
    assert store.apply_many([*reports, other]) == [False, False, True]
    [reply] = store.apply(LimitOperation([LimitDemand(limit, "n", "k", 0)]))
    return reply.remaining


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_report__applied_twice__is_charged_once(valkey: Server, strategy: LimitStrategy) -> None:
    clock = ManualClock(1_800_000_000)
    assert _apply_reports(MemoryStore(clock), strategy) == 3
    with redis_store(valkey, clock) as store:
        assert _apply_reports(store, strategy) == 3


def test_report__marker_of_another_type__is_an_error_of_its_key(valkey: Server) -> None:
    report = ChargeOperation(LimitConfig(10, 10).build_strategy(), "n", "k", 1).as_report("w", 1)
    with redis_store(valkey) as store:
        command(valkey, "HSET", "rate_limiter_reports:n:w", "a", "b")
        with pytest.raises(StateTypeError):
            store.apply(report)


def test_share__outage_is_ending__grants_nothing_for_a_moment() -> None:
    ending = OutageShare(LimitConfig(10, 10).build_strategy(), "n", outage(1, is_ending=True))
    assert ending.step(None, START_US + 1_000_000, 1) == (None, 50_000)
    assert ending.step(None, START_US + 1_000_000, 1, 70_000) == (None, 70_001)


def test_charge__key_of_another_type__is_named_in_the_error(valkey: Server) -> None:
    charge = ChargeOperation(LimitConfig(10, 10).build_strategy(), "n", "k", 1)
    with redis_store(valkey) as store:
        command(valkey, "SET", "rate_limiter:n:k", "text")
        with pytest.raises(StateTypeError, match="'rate_limiter:n:k' does not hold the state of a limit"):
            store.apply(charge)


def test_limiter__during_an_outage__supports_every_method() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    limiter = BaseLimiter(LimitConfig(10, 10), store, "limiter_sync")
    primary.error = StateUnavailableError("gone")
    limiter_sync = limiter.sync
    assert not limiter_sync.acquire("k")
    assert limiter.fallback is not None
    clock.advance(1)
    assert limiter_sync.acquire("k")
    assert limiter_sync.acquire("k", 3)
    assert limiter_sync.decide("k").allowed
    limiter_sync.release("k")
    assert limiter_sync.peek("k").remaining == 6
    stats = limiter_sync.stats("k")
    assert (stats.tokens_available, stats.requests_last_minute, stats.limit) == (6, 4, 10)
    assert stats.fallback == limiter.fallback
    assert limiter_sync.acquire("k", 10, timeout=5)
    with pytest.raises(StateUnavailableError, match="not possible without the shared state"):
        limiter_sync.set_limit("5/s")


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_share__cost_above_its_capacity__is_reported_in_full(strategy: LimitStrategy) -> None:
    share = OutageShare(LimitConfig(10, 10, 1, strategy).build_strategy(), "n", outage(8))
    cost = 1 if strategy is LimitStrategy.LEAKY_BUCKET else 5
    now_us = START_US + 60_000_000
    state, wait_us = share.step(None, now_us, cost)
    assert wait_us == 0
    assert state is not None
    report, _ = share.take_report("", "k", state, now_us)
    assert report is not None
    assert report.amount == cost


def test_decide__unusable_key__uses_the_overridden_limit() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.__class__ = type("Far", (type(primary),), {"bind": property(lambda _: None)})
    limiter = BaseLimiter(LimitConfig(100, 100), store, "changed")
    limiter.sync.set_limit("2/s")
    run_heartbeat(store)
    primary.error = StateTypeError("something else")
    limiter.sync.decide("k")
    clock.advance(10)
    assert sum(limiter.sync.decide("k").allowed for _ in range(10)) == 2


def test_cost__above_the_configured_but_not_the_raised_limit__waits_in_an_outage(valkey: Server) -> None:
    with redis_store(valkey) as primary:
        store = FailoverStore.wrap(primary, primary.address)
        store.heartbeat = ManualHeartbeat(store)
        limiter = BaseLimiter(LimitConfig(10, 10), store, "raised")
        limiter.sync.set_limit("100/s")
        assert limiter.sync.acquire("k", 50)
        run_heartbeat(store)
        store.heartbeat.worker_count.record(8)
        store.fail_over(StateUnavailableError("gone"))
        assert not limiter.sync.acquire("k", 50)
        assert limiter.sync.acquire("k", 50, timeout=30)


@pytest.mark.parametrize("change", [b"", b"5", b"a b c d", b"0 0 0 0 x", b"5 0 0 0 x", b"-1 1 1 1", b"\xff"])
def test_override__invalid_record__has_no_effect(change: bytes) -> None:
    for strategy in LimitStrategy:
        for lease in (False, True):
            limit_strategy = LimitConfig(10, 10, 1, strategy, lease=lease).build_strategy()
            assert limit_strategy.with_override(change) is limit_strategy


def test_lease__during_an_outage__takes_single_units_from_the_share() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    limiter = BaseLimiter(LimitConfig(10, 10, lease=True), store, "leased")
    assert limiter.sync.acquire("k")
    primary.error = StateUnavailableError("gone")
    clock.advance(0.1)  # the lease has expired
    assert not limiter.sync.acquire("k")
    clock.advance(1)
    assert sum(limiter.sync.acquire("k") for _ in range(20)) == 10
    assert limiter._flows.lease_client is not None
    limiter._flows.lease_client.return_all()
    nothing = LeaseOperation(limiter._flows.lease_client._source, "k", 0, 0)
    assert store.apply(nothing) == REFUSED


def bucket_share(workers: int = 2, closes_us: int = NEVER_US, **more: Any) -> OutageShare:
    """Return the share of a bucket of 10 at 10/s: 5 tokens at 5/s."""
    return OutageShare(TokenBucketStrategy(10, 1, 100_000), "n", outage(workers, **more), closes_us)


SECOND_US = 1_000_000


def test_share__grants_and_refuses__counts_only_what_it_granted() -> None:
    share = bucket_share()
    state, wait_us = share.step(None, START_US + SECOND_US, 2)
    assert (state, wait_us) == (
        (2, (3 * 200_000, START_US + SECOND_US, 200_000, 2, NO_PAST)),
        0,
    )
    assert share.step(state, START_US + SECOND_US, 4) == (None, 200_000)
    moved, wait_us = share.step(state, START_US + SECOND_US - 5, 4)
    assert moved is not None
    assert (moved[0], wait_us) == (2, 200_000)


def test_share__of_a_queue__counts_a_grant_that_waits_its_turn() -> None:
    share = OutageShare(LeakyBucketStrategy(10, 1, 100_000), "n", outage(2))
    state, wait_us = share.step(None, START_US, 1, 200_000)
    assert state is not None
    assert (state[0], wait_us) == (1, 200_000)
    assert share.step(None, START_US, 1, 199_999) == (None, 200_000)


@pytest.mark.parametrize(
    ("options", "wait_us"),
    [
        ({"is_ending": True}, 50_000),
        ({"full": True}, 1_000_000),
        ({"closes_us": START_US + SECOND_US}, 1_000_000),
    ],
)
def test_share__closed__refuses_longer_than_the_caller_would_wait(
    options: dict[str, Any], wait_us: int
) -> None:
    share, now_us = bucket_share(**options), START_US + SECOND_US
    assert share.step(None, now_us, 1) == (None, wait_us)
    assert share.step(None, now_us, 1, 5 * SECOND_US) == (None, 5 * SECOND_US + 1)
    assert share.usage(None, now_us) == LimitUsage(0, 0, 0)


def test_share__microsecond_before_it_closes__still_grants() -> None:
    share = bucket_share(closes_us=START_US + SECOND_US)
    assert share.step(None, START_US + SECOND_US - 1, 4)[1] == 0
    assert share.usage(None, START_US + SECOND_US - 1) == LimitUsage(4, 1, 0)


def test_share__used__reports_what_its_bucket_holds() -> None:
    share = bucket_share()
    assert share.usage(None, START_US) == LimitUsage(0, SECOND_US, 0)
    state, _ = share.step(None, START_US + SECOND_US, 2)
    assert state is not None
    assert share.usage(state, START_US + SECOND_US) == LimitUsage(3, 400_000, 2)
    assert share.expires_us(state) == START_US + 61 * SECOND_US
    assert (share.name, share.params) == ("token_bucket", LimitParams(5, 1, 200_000, 0))
    assert share.with_params(share.params) is share
    assert share.with_override(b"1 1 1 1") is share


def test_share__credit__is_what_it_granted_since_the_outage_began() -> None:
    share, now_us = bucket_share(), START_US + SECOND_US
    state, _ = share.step(None, now_us, 2)
    assert state is not None
    credited = share.settle(state, now_us, -1, SECOND_US)
    assert credited is not None
    assert (credited[0], credited[1][0]) == (1, 4 * 200_000)
    assert share.settle(state, now_us, -1, SECOND_US + 1) is None, "the shared store granted it"
    more = share.settle(state, now_us, -5, 0)
    assert more is not None
    assert (more[0], more[1][0]) == (0, 5 * 200_000)
    debited = share.settle(None, now_us, 3, 0)
    assert debited is not None
    assert (debited[0], debited[1][0]) == (3, 2 * 200_000)
    assert share.settle(None, now_us, -1, 0) is None
    assert share.settle(state, now_us, 0, 0) is None


def test_share__divided_again__keeps_its_limit_and_when_it_closes() -> None:
    divided = bucket_share(closes_us=START_US + SECOND_US).with_outage(outage(5))
    assert divided.params == LimitParams(2, 1, 500_000, 0)
    assert divided.step(None, START_US + SECOND_US, 1)[1] == 1_000_000
    charge, rest = divided.take_report("space", "k", (2, (0, START_US, 500_000, 2, NO_PAST)), START_US)
    assert charge is not None
    assert rest == (0, (0, START_US, 500_000, 2, NO_PAST))
    key = charge.state_keys[0]
    assert (key.space, key.key) == (f"{LIMIT_SPACE}:n", "k")
    assert divided.take_report("space", "k", (0, ()), START_US) == (None, None)


def test_constant_strategy__open_or_closed__keeps_no_state() -> None:
    strategy = TokenBucketStrategy(10, 1, 100_000)
    opened, closed = ConstantStrategy(strategy, 0), ConstantStrategy(strategy, 1_000_000)
    assert opened.step(None, START_US, 99, 7) == (None, 0)
    assert closed.step(None, START_US, 1) == (None, 1_000_000)
    assert closed.step(None, START_US, 1, 1_000_000) == (None, 1_000_001)
    assert opened.usage(None, START_US) == LimitUsage(10, 0, 0)
    assert closed.usage(None, START_US) == LimitUsage(0, 0, 0)
    assert opened.expires_us((1,)) == 0
    assert opened.release((1,), START_US, 1) == (1,)
    assert (opened.name, opened.params) == (strategy.name, strategy.params)


@pytest.mark.parametrize(
    ("fallback", "more", "closed_after_us", "wait_us"),
    [
        ("open", {}, 0, 0),
        ("open", {"full": True}, 0, 1_000_000),
        ("closed", {}, 0, 1_000_000),
        ("closed", {"full": True}, 0, 1_000_000),
        ("share", {"full": True}, 0, 1_000_000),
        ("share", {}, 0, 200_000),
        ("open", {"denied": True}, 0, 200_000),
        ("closed", {}, 1, 200_000),
    ],
)
def test_fallback__each_policy__decides_the_first_call(
    fallback: str, more: dict[str, bool], closed_after_us: int, wait_us: int
) -> None:
    strategy = TokenBucketStrategy(10, 1, 100_000)
    used = fallback_strategy(strategy, "n", fallback, outage(2, **more), closed_after_us)
    assert used.step(None, START_US, 1) == (None, wait_us)
