"""Callers that do not wait, beside callers that do (F9): they take nothing that a waiter has claimed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.limits.faces import STORES, made_store
from tests.support import memory_store, shared_store, wait_until

from comporta import BaseLimiter, Decision, LimitConfig, LimitGroup, priority
from comporta.limits.claim_operation import ClaimOperation
from comporta.limits.claims import CLAIM_TTL_US, ClaimAttempt
from comporta.limits.operation import LimitDemand
from comporta.limits.scripts import claim_script
from comporta.stores.base import Store
from comporta.stores.bound_limit import FastPathBlocked
from comporta.stores.records import RECORD
from comporta.testing import ManualClock, Server

CONFIG = LimitConfig(10, 10, batch_headroom=4)
NORMAL, BATCH = 1, 2


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_800_000_000)


@pytest.fixture(params=STORES[1:])
def store(request: pytest.FixtureRequest, server: Server, clock: ManualClock) -> Iterator[Store]:
    """A store that other processes share."""
    with made_store(request.param, server, clock) as made:
        yield made


@pytest.fixture
def limiter(store: Store) -> BaseLimiter:
    limiter = BaseLimiter(CONFIG, store, "tested")
    assert limiter.sync.acquire("k")  # from now on the fast path knows the key
    return limiter


def leave_claim(store: Store, units: int, rank: int = NORMAL, name: str = "tested", claimant: int = 7) -> int:
    """Let a waiter of another process claim some units; returns how long it would wait, in µs."""
    strategy = CONFIG.build_strategy()
    script = claim_script(strategy.name, name, tuple(strategy.params))
    demand = LimitDemand(strategy, name, "k", units)
    wait_us: int = store.apply(
        ClaimOperation(script, demand, ClaimAttempt(claimant, rank, 1000 // claimant, 10**9))
    )
    return wait_us


def await_method(limiter: BaseLimiter, method: str, *args: Any, **options: Any) -> Any:
    """Call a method of a limiter on an event loop of its own."""

    async def call() -> Any:
        try:
            return await getattr(limiter, method)(*args, **options)
        finally:
            await limiter.aclose()

    return asyncio.run(call())


def test_acquire__claim_of_another_process__leaves_the_claimed_units(
    store: Store, limiter: BaseLimiter, clock: ManualClock
) -> None:
    assert leave_claim(store, 10) == 100_000
    assert not limiter.sync.acquire("k")
    assert not await_method(limiter, "acquire", "k")
    assert limiter.sync.acquire("k", priority="interactive")  # higher classes ignore the claim
    assert limiter.sync.acquire("other")
    clock.advance(0.1 + CLAIM_TTL_US / 1e6)
    assert limiter.sync.acquire("k")  # the claim has expired


def test_acquire__claim_of_a_lower_class__is_ignored(store: Store, limiter: BaseLimiter) -> None:
    assert leave_claim(store, 10, BATCH) > 0
    assert limiter.sync.acquire("k")
    assert not limiter.sync.acquire("k", priority="batch")


def test_acquire__claimed_units_are_not_all__takes_the_rest(store: Store, limiter: BaseLimiter) -> None:
    assert limiter.sync.acquire("k", cost=6)
    assert leave_claim(store, 4) > 0
    assert not limiter.sync.acquire("k")


def test_acquire_interactive__waiting_process__keeps_the_claim(store: Store, limiter: BaseLimiter) -> None:
    assert leave_claim(store, 10) > 0
    assert limiter.sync.acquire("k", priority="interactive")
    assert not limiter.sync.acquire("k")


def test_decide__claim_of_another_process__is_refused(store: Store, limiter: BaseLimiter) -> None:
    assert leave_claim(store, 10) == 100_000
    decision = limiter.sync.decide("k")
    assert not decision.allowed
    assert decision.remaining == 9
    assert decision.retry_after == pytest.approx(0.2)
    assert await_method(limiter, "decide", "k") == decision
    assert limiter.sync.peek("k") == decision
    assert limiter.sync.decide("k", priority="interactive").allowed


def test_acquire_up_to__claim_of_another_process__takes_what_is_above_it(
    store: Store, limiter: BaseLimiter, clock: ManualClock
) -> None:
    assert limiter.sync.acquire("k", cost=8)
    assert leave_claim(store, 3) == 200_000
    clock.advance(0.2)
    assert limiter.sync.acquire_up_to("k", 5) == 0
    assert limiter.sync.acquire_up_to("k", 5, priority="interactive") == 3
    clock.advance(0.5)
    assert await_method(limiter, "acquire_up_to", "k", 5, priority="batch") == 1  # the claim has expired


def test_group__claim_of_another_process__leaves_the_claimed_units(store: Store) -> None:
    group = LimitGroup(limit={"one": "10/s", "two": "100/s"}, state=store, name="tested")
    assert group.sync.acquire("k")
    assert leave_claim(store, 10, name="tested.one") > 0
    assert not group.sync.acquire("k")
    assert not group.sync.decide("k").allowed
    assert group.sync.decide("k", priority="interactive").allowed


@pytest.mark.parametrize("kind", STORES)
def test_classes__every_store__count_for_decide_peek_and_acquire_up_to(
    kind: str, server: Server, clock: ManualClock
) -> None:
    with made_store(kind, server, clock) as store:
        limiter = BaseLimiter(CONFIG, store, "tested")
        assert limiter.sync.peek("k", cost=6, priority="batch").allowed
        assert limiter.sync.decide("k", cost=5, priority="batch").allowed
        assert limiter.sync.acquire_up_to("k", 3, priority="batch") == 1
        assert limiter.sync.peek("k", priority="batch").retry_after == pytest.approx(0.1)
        with priority("batch"):
            assert not limiter.sync.decide("k").allowed
            assert not await_method(limiter, "decide", "k").allowed
            assert not await_method(limiter, "peek", "k").allowed
        assert limiter.sync.acquire_up_to("k", 5) == 4


class WaitingCaller:
    """A caller of this process that waits for a limit."""

    def __init__(self, acquire: Any, *args: Any, **options: Any) -> None:
        self.granted: list[bool] = []
        self._thread = threading.Thread(
            target=lambda: self.granted.append(acquire(*args, timeout=60, **options)), daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        self._thread.join(20)


def test_decide__callers_wait_in_this_process__is_refused_until_they_are_served() -> None:
    with memory_store() as store:
        limiter = BaseLimiter(LimitConfig(0.5, 10), store, "tested")
        assert limiter.sync.acquire("k", cost=9)
        waiting = WaitingCaller(limiter.sync.acquire, "k", 2)
        wait_until(lambda: limiter._flows.wait_queue.count("k"))
        decision: Decision = limiter.sync.decide("k")
        assert not decision.allowed
        assert decision.remaining == 1
        assert decision.retry_after > 0
        assert not await_method(limiter, "decide", "k").allowed
        assert limiter.sync.decide("k", priority="interactive").allowed
        limiter.sync.release("k", 5)
        waiting.end()
        assert waiting.granted == [True]


def test_group__callers_wait_in_this_process__refuses_callers_that_do_not_wait() -> None:
    with memory_store() as store:
        group = LimitGroup(limit={"one": LimitConfig(0.5, 10)}, state=store, name="tested")
        assert group.sync.acquire("k", cost=9)
        waiting = WaitingCaller(group.sync.acquire, "k", 2)
        wait_until(lambda: group._flows.wait_queue.count("k"))
        assert not group.sync.acquire("k")
        assert group.sync.acquire("k", priority="interactive")
        group.sync.release("k", 5)
        waiting.end()
        assert waiting.granted == [True]


def test_group__waits_on_a_shared_store__leaves_claims_on_its_limits() -> None:
    with shared_store() as store:
        limits = {"one": LimitConfig(0.5, 10), "two": LimitConfig(1000, 1000)}
        group = LimitGroup(limit=limits, state=store, name="tested")
        others = LimitGroup(limit=limits, state=store, name="tested")
        assert group.sync.acquire("k", cost={"one": 9})
        waiting = WaitingCaller(group.sync.acquire, "k", {"one": 2, "two": 2})
        wait_until(lambda: not others.sync.decide("k", {"one": 1, "two": 0}).allowed)
        others.sync.release("k", {"one": 5})
        waiting.end()
        assert waiting.granted == [True]


def test_fast_path__blocked_state__is_used_again_when_the_claim_ends(clock: ManualClock) -> None:
    with shared_store(clock) as store:
        limiter = BaseLimiter(CONFIG, store, "tested")
        try_acquire = limiter._flows.bound.try_acquire
        assert try_acquire("k", 1) == 0
        leave_claim(store, 10)
        with pytest.raises(FastPathBlocked):
            try_acquire("k", 1)
        clock.advance(2)
        with pytest.raises(FastPathBlocked):
            try_acquire("k", 1)
        assert limiter.sync.acquire("k")  # finds that the claim has expired
        assert try_acquire("k", 1) == 0


def test_state_type__not_attached_to_another__blocks_no_fast_path() -> None:
    assert not RECORD.attached
    assert not RECORD.blocks_fast_path((0, b""))


def test_claim__key_without_a_state__blocks_nothing(clock: ManualClock) -> None:
    with shared_store(clock) as store:
        limiter = BaseLimiter(CONFIG, store, "tested")
        assert limiter.sync.acquire("k")
        assert leave_claim(store, 10) > 0
        limiter.sync.reset("k")
        assert leave_claim(store, 1, claimant=8) > 0  # behind the first, however much there is
        assert limiter.sync.acquire("k")


def test_lease__claim_of_another_process__takes_no_more_than_needed(store: Store, clock: ManualClock) -> None:
    limiter = BaseLimiter(LimitConfig(10, 10, lease=True), store, "tested")
    assert limiter.sync.acquire("k", cost=2)
    assert leave_claim(store, 10) > 0
    assert not limiter.sync.acquire("k")
    clock.advance(2)
    assert limiter.sync.acquire("k")


def test_lease__waiter_of_several_units__uses_the_lease_or_leaves_a_claim() -> None:
    with shared_store() as store:
        limiter = BaseLimiter(LimitConfig(0.5, 100, lease=True), store, "tested")
        for _ in range(40):
            assert limiter.sync.acquire("k")  # the lease grows
        client = limiter._flows.lease_client
        assert client is not None
        held = client.held_units()
        assert held >= 2
        assert limiter.sync.acquire("k", cost=2, timeout=5)
        assert client.held_units() == held - 2
        assert limiter.sync.acquire_up_to("k", 100) > 0
        client.return_all()
        limiter.sync.acquire_up_to("k", 100)
        waiting = WaitingCaller(limiter.sync.acquire, "k", 3)
        wait_until(lambda: limiter._flows.is_contended)
        other = WaitingCaller(limiter.sync.acquire, "k", 2)
        wait_until(lambda: limiter._flows.wait_queue.count("k") == 2)
        limiter.sync.release("k", 20)
        waiting.end()
        other.end()
        assert waiting.granted == other.granted == [True]
