"""Leases on every store: taken at once, used locally, and returned.

The tests use a manual clock, so that the scheduler returns no lease (``test_lease_scheduler.py`` tests it).
Two limiters on one store stand for two workers: each has its own leases.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.processes.accounting import most_above_bucket, most_in_window
from tests.support import command, max_examples, memory_store, redis_store, shared_store

from comporta import (
    BaseLimiter,
    LimitConfig,
    LimitGroup,
    LimitKey,
    LimitStrategy,
    StateError,
    StateTypeError,
)
from comporta.clock import MONOTONIC
from comporta.limits.leases import client
from comporta.limits.leases.client import KeyLease, LeaseClient, leased_units
from comporta.limits.leases.operation import Lease, LeaseOperation
from comporta.limits.strategies.base import EndedLease
from comporta.limits.strategies.token_bucket import LeasedTokenBucketStrategy, TokenBucketStrategy
from comporta.stores.base import Operation, Store
from comporta.stores.bound_limit import WouldBlock
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock, Server

MakeStore = Callable[[ManualClock], AbstractContextManager[Store]]

SLOW = LimitConfig(0.001, 100, lease=1.0)
"""A limit that does not refill during a test."""


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock, valkey: Server) -> Iterator[Store]:
    makers: dict[str, MakeStore] = {
        "memory": memory_store,
        "shared": shared_store,
        "redis": lambda clock: redis_store(valkey, clock),
    }
    with makers[request.param](clock) as made:
        yield made


class Counting(Store):
    """A store that counts the operations applied to it, and can be made to fail."""

    worker_count: int | None = None

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = store.clock
        self.calls = 0
        self.broken = False

    def apply(self, operation: Operation[Any]) -> Any:
        self.calls += 1
        if self.broken:
            raise StateError("broken")
        return self.store.apply(operation)

    async def apply_async(self, operation: Operation[Any]) -> Any:
        return self.apply(operation)


def worker(store: Store, config: LimitConfig = SLOW) -> BaseLimiter:
    return BaseLimiter(config, store, "tested")


def key_lease(limiter: BaseLimiter, key: str = "k") -> KeyLease:
    assert limiter._flows.lease_client is not None
    return limiter._flows.lease_client._leases[key]


def take_units(limiter: BaseLimiter, times: int) -> int:
    return sum(limiter.sync.acquire("k") for _ in range(times))


async def once(limiter: BaseLimiter) -> bool:
    """Run a coroutine on a new event loop."""
    try:
        return await limiter.acquire("k")
    finally:
        await limiter.aclose()


def at_work(limiter: BaseLimiter) -> None:
    """Take until this worker holds a lease of 8 with one unit used: 1 + 2 + 4 + 1 taken."""
    assert take_units(limiter, 8) == 8
    assert (key_lease(limiter).size, key_lease(limiter).left) == (8, 7)


def test_lease__used_up__next_one_is_twice_as_large(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    assert take_units(limiter, 63) == 63
    assert store.calls == 6  # 1 + 2 + 4 + 8 + 16 + 32


def test_lease__single_worker__is_at_most_half_of_the_limit(store: Store) -> None:
    limiter = worker(store)
    take_units(limiter, 63)
    assert limiter.sync.acquire("k") is True
    assert key_lease(limiter).size == 37  # all that was left: less than half of 100 and less than twice 32
    assert take_units(limiter, 100) == 36


def test_lease__several_workers__is_a_share_for_each(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    store.worker_count = 10
    limiter = worker(store)
    assert take_units(limiter, 50) == 50
    assert key_lease(limiter).size == 5


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_lease__any_strategy__grants_exactly_the_capacity(store: Store, strategy: LimitStrategy) -> None:
    config = LimitConfig(0.001, 300, 1000, strategy, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    granted = sum(take_units(limiter, 1) for _ in range(300) for limiter in (first, second))
    assert granted == (1 if strategy is LimitStrategy.LEAKY_BUCKET else 300)


def test_lease__held_by_another_worker__counts_against_the_capacity(store: Store, clock: ManualClock) -> None:
    config = LimitConfig(1000, 100, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    at_work(first)
    clock.advance(0.4)  # the rate would have refilled 400
    assert second.sync.peek("k").remaining == 93
    assert take_units(second, 200) == 93
    assert take_units(first, 200) == 7


def test_lease__half_unused__next_one_is_half_as_large(store: Store, clock: ManualClock) -> None:
    limiter = worker(store)
    at_work(limiter)
    clock.advance(0.5)  # half of its duration: no longer usable
    assert limiter.sync.acquire("k") is True
    assert key_lease(limiter).size == 4
    assert limiter.sync.peek("k").remaining == 100 - 8 - 4  # the unused units are available again


def test_lease__mostly_used__next_one_is_as_large(store: Store, clock: ManualClock) -> None:
    limiter = worker(store)
    at_work(limiter)
    take_units(limiter, 5)
    clock.advance(0.5)
    assert limiter.sync.acquire("k") is True
    assert key_lease(limiter).size == 8


def test_lease__worker_killed__blocks_others_only_until_it_expires(store: Store, clock: ManualClock) -> None:
    config = LimitConfig(1000, 100, lease=1.0)
    at_work(worker(store, config))
    other = worker(store, config)
    clock.advance(0.4)
    assert other.sync.peek("k").remaining == 93
    clock.advance(0.599)
    assert other.sync.peek("k").remaining == 93
    clock.advance(0.001 + 0.007)  # after the lease expired the bucket refills
    assert other.sync.peek("k").remaining == 100


def test_lease__worker_killed__refusals_say_when_to_retry(store: Store, clock: ManualClock) -> None:
    """The bucket refills only as far as the ledger leaves room, and the wait accounts for it."""
    config = LimitConfig(1000, 10, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    take_units(first, 4)  # 1, 2, and one of 4
    assert key_lease(first).left == 3
    clock.advance(0.25)
    refused = second.sync.decide("k", cost=9)
    assert (refused.allowed, refused.remaining) == (False, 7)
    assert refused.retry_after == pytest.approx(
        0.752
    )  # the ledger forgets after 1 s, then two tokens are refilled
    assert refused.reset_after == pytest.approx(0.753)
    clock.advance(0.7519)
    assert second.sync.decide("k", cost=9).allowed is False
    clock.advance(0.0001)
    assert second.sync.decide("k", cost=9).allowed is True


def test_lease__used_just_before_it_expires__keeps_the_limit_afterwards(
    store: Store, clock: ManualClock
) -> None:
    """The bucket had less room while the lease existed, however long ago it began."""
    config = LimitConfig(1000, 100, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    clock.advance(0.4999)  # just before a slice of the ledger ends
    at_work(first)
    clock.advance(0.4999)  # just before the next one ends
    assert key_lease(first).left == take_units(first, 7) == 7
    clock.advance(0.0002)
    assert take_units(second, 200) == 93


def test_refusal__remembered__is_repeated_locally_until_its_retry_time(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store, LimitConfig(20, 4, lease=True))
    take_units(limiter, 5)
    calls = store.calls
    assert take_units(limiter, 10) == 0
    assert store.calls == calls
    assert limiter._flows.bound.try_acquire("k", 1) == 50_000
    clock.advance(0.04999)
    assert limiter._flows.bound.try_acquire("k", 1) == 10
    clock.advance(0.00001)
    assert take_units(limiter, 1) == 1
    assert store.calls == calls + 1


def test_refusal__with_a_long_wait__is_checked_again_after_100_ms(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    first, second = worker(store), worker(store)
    at_work(first)
    second.sync.acquire("k", cost=85)
    assert second.sync.acquire("k") is False
    first.sync.release("k", cost=1)
    assert second.sync.acquire("k") is False
    clock.advance(0.1)
    assert second.sync.acquire("k") is True


def test_refusal__of_a_cost_above_one__is_not_remembered(store: Store) -> None:
    limiter = worker(store)
    limiter.sync.acquire("k", cost=95)
    assert limiter.sync.acquire("k", cost=10) is False
    assert limiter.sync.acquire("k") is True


def test_release__after_a_refusal__forgets_the_refusal(store: Store) -> None:
    limiter = worker(store)
    limiter.sync.release("unknown")
    assert take_units(limiter, 101) == 100
    limiter.sync.release("k")
    assert take_units(limiter, 2) == 1


def test_reset__with_a_lease__drops_the_lease(store: Store) -> None:
    limiter = worker(store)
    limiter.sync.reset("unknown")
    assert take_units(limiter, 60) == 60
    limiter.sync.reset("k")
    assert take_units(limiter, 101) == 100


def test_set_limit__raised__applies_at_once_and_keeps_the_lease(store: Store) -> None:
    limiter = worker(store)
    assert take_units(limiter, 101) == 100
    limiter.sync.set_limit("200/hour burst 300")
    limiter.sync.reset("k")
    assert take_units(limiter, 400) == 300
    assert key_lease(limiter).next_size > 1
    limiter.sync.set_limit(None)
    limiter.sync.reset("k")
    assert take_units(limiter, 101) == 100


def test_set_limit__by_a_program_without_leases__keeps_the_ledger(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(1000, 100, lease=1.0))
    at_work(limiter)
    plain = LimitConfig(1000, 100).build_strategy().params.record_text("100")
    limiter._flows.config = SLOW  # only the record counts
    from comporta.stores.records import WriteRecord  # noqa: PLC0415 - only here

    store.apply(WriteRecord("rate_limiter_change", "tested", plain, None, changes_override=True))
    clock.advance(0.4)
    assert limiter.sync.peek("k").remaining == 93
    assert take_units(limiter, 9) == 9


def test_cost__covered_by_the_lease__is_taken_from_it(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    at_work(limiter)
    calls = store.calls
    assert limiter._flows.bound.acquire("k", 5) == 0
    assert (store.calls, key_lease(limiter).left) == (calls, 2)


def test_cost__above_the_lease__uses_the_rest_of_it_too(store: Store) -> None:
    limiter = worker(store)
    at_work(limiter)
    assert limiter.sync.acquire("k", cost=92) is True
    assert limiter.sync.acquire("k") is False


def test_wait__with_leases__is_served_at_the_retry_time(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(10, 5, lease=True))
    assert take_units(limiter, 6) == 5
    before = clock.now_ns()
    assert limiter.sync.acquire("k", timeout=1) is True
    assert clock.now_ns() - before == 100_000_000
    assert limiter.sync.acquire("k", timeout=0.05) is False


def test_group__with_a_leased_limit__obeys_the_ledger(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(1000, 100, lease=1.0))
    at_work(limiter)
    clock.advance(0.4)
    group = LimitGroup(limiter)
    assert group.sync.acquire(["k"], cost=94) is False
    assert group.sync.acquire(["k"], cost=93) is True


def test_fixed_window__ended__ends_its_leases(store: Store, clock: ManualClock) -> None:
    config = LimitConfig(1, 1000, 10, LimitStrategy.FIXED_WINDOW, lease=10)
    assert config.lease_us == 100_000
    limiter = worker(store, config)
    limiter.sync.acquire("other")
    at_work(limiter)
    clock.advance(9.99)
    assert take_units(limiter, 2) == 2  # the window ends in 10 ms
    assert key_lease(limiter).ends_ns == clock.now_ns() + 10_000_000
    clock.advance(0.01)
    assert take_units(limiter, 1001) == 1000


def test_fixed_window__lease_returned_in_time__is_released(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(1, 1000, 10, LimitStrategy.FIXED_WINDOW, lease=True))
    at_work(limiter)
    clock.advance(0.03)
    assert take_units(limiter, 1) == 1
    assert limiter.sync.peek("k").remaining == 1000 - 8 - 4


def test_sliding_window__lease_returned__is_released_while_it_is_valid(
    store: Store, clock: ManualClock
) -> None:
    config = LimitConfig(1, 1000, 10, LimitStrategy.SLIDING_WINDOW, lease=10)
    limiter = worker(store, config)
    at_work(limiter)
    clock.advance(0.049)
    assert limiter._flows.lease_client is not None
    limiter._flows.lease_client.return_all()
    assert limiter.sync.peek("k").remaining == 992
    assert take_units(limiter, 2) == 2  # of 4
    clock.advance(0.051)
    assert take_units(limiter, 1) == 1  # of 2; too late for the others, which stay counted in their window
    assert limiter.sync.peek("k").remaining == 992 - 4 - 2


def test_leaky_bucket__with_a_lease__leases_no_turns(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(10, 5, strategy=LimitStrategy.LEAKY_BUCKET, lease=True))
    for _ in range(5):
        assert take_units(limiter, 3) == 1
        assert key_lease(limiter).left == 0
        clock.advance(0.1)
    assert limiter.sync.acquire("k", timeout=1) is True
    assert limiter.sync.acquire("k", timeout=1) is True  # the next turn of the queue


def test_keys__several_notations__share_one_lease(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    key = LimitKey("user", "42")
    for _ in range(7):
        assert limiter.sync.acquire(key) is True
    assert store.calls == 3
    assert limiter.sync.acquire("user:42") is True
    assert limiter.sync.acquire(key) is True
    assert store.calls == 4
    for _ in range(7):
        assert limiter.sync.acquire(None) is True
    assert store.calls == 7
    long = "x" * 1000
    for _ in range(7):
        assert limiter.sync.acquire(long) is True
    assert store.calls == 10


def test_keys__invalid__are_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="key must be a LimitKey, a str or None, got 5"):
        worker(store).sync.acquire(5)  # type: ignore[arg-type]


def test_lease_client__too_many_keys__calls_the_store_for_the_others(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(client, "LEASED_KEYS_MAX", 3)
    limiter = worker(MemoryStore(clock))
    assert all(limiter.sync.acquire(key) for key in "abcdabcd")
    hands = limiter._flows.lease_client._leases  # type: ignore[union-attr]
    assert set(hands) == set("abc")
    clock.advance(1)
    assert limiter.sync.acquire("a") is True  # its own lease again
    assert limiter.sync.acquire("d") is True
    assert set(hands) == {"a", "d"}


def start_request(limiter: BaseLimiter) -> KeyLease:
    """Keep a key while its lease is being requested."""
    lease = key_lease(limiter)
    lease.is_requesting = True
    return lease


def test_lease__being_requested__other_callers_take_one_unit_each(store: Store) -> None:
    limiter = worker(store)
    take_units(limiter, 3)
    lease = start_request(limiter)
    assert take_units(limiter, 2) == 2
    assert lease.size == 2
    assert asyncio.run(once(limiter)) is True
    assert limiter.sync.peek("k").remaining == 94


def test_lease__granted_while_another_caller_is_refused__serves_it_too(clock: ManualClock) -> None:
    class Landing(Counting):
        def apply(self, operation: Operation[Any]) -> Any:
            wait_us = super().apply(operation)
            lease.left, lease.ends_ns = 2, clock.now_ns() + 1
            return wait_us

    counting, store = Counting(MemoryStore(clock)), Landing(MemoryStore(clock))
    limiter = worker(counting)
    take_units(limiter, 100)
    lease = start_request(limiter)
    lease.refused_until_ns = 0
    assert take_units(limiter, 1) == 0
    store.store = counting.store
    limiter._flows.lease_client.inner._store = store  # type: ignore[union-attr]
    assert take_units(limiter, 1) == 1
    assert lease.left == 1


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_store__failing__raises_and_is_called_again(clock: ManualClock, face: str) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    at_work(limiter)
    take_units(limiter, 7)
    store.broken = True
    for _ in range(2):
        with pytest.raises(StateError, match="broken"):
            limiter.sync.acquire("k") if face == "blocking" else asyncio.run(once(limiter))
    store.broken = False
    assert limiter.sync.acquire("k") is True
    assert key_lease(limiter).size > 1


def test_aclose__with_leases__returns_them(store: Store) -> None:
    async def main() -> None:
        limiter = worker(store)
        for key in "kl":
            for _ in range(4):
                await limiter.acquire(key)
        await limiter.acquire("m")  # nothing is left of it
        await limiter.aclose()
        assert [(await limiter.peek(key)).remaining for key in "klm"] == [96, 96, 99]
        assert await limiter.acquire("k") is True
        await limiter.aclose()

    asyncio.run(main())


def test_return_all__store_failing__leaves_leases_to_expire(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    at_work(limiter)
    store.broken = True
    assert limiter._flows.lease_client is not None
    limiter._flows.lease_client.return_all()
    assert key_lease(limiter).left == 0
    store.broken = False
    clock.advance(1)
    assert limiter.sync.peek("k").remaining == 85  # a lease that was not returned is spent


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_undo__lease__returns_all_units_except_turns(store: Store, strategy: LimitStrategy) -> None:
    limiter = worker(store, LimitConfig(0.001, 100, 1000, strategy, lease=1.0))
    limiter.sync.acquire("k", cost=10)
    assert limiter._flows.lease_client is not None
    operation = LeaseOperation(limiter._flows.lease_client._source, "k", 2, 20)
    if strategy is LimitStrategy.LEAKY_BUCKET:
        limiter.sync.reset("k")
    reply = store.apply(operation)
    undo = operation.undo(reply)
    assert undo is not None
    assert undo.script_args() == (0, 0, reply.lease_id, reply.granted - 2, reply.granted)
    assert undo.undo(store.apply(undo)) is None
    left = 80 if strategy is LimitStrategy.LEAKY_BUCKET else 90
    assert limiter.sync.peek("k").remaining == left


def test_return_lease__clock_set_back__ignores_unknown_leases(store: Store, clock: ManualClock) -> None:
    limiter = worker(store)
    at_work(limiter)
    clock.advance(-100)
    assert limiter.sync.peek("k").remaining == 85
    assert take_units(limiter, 1) == 1  # from the lease
    limiter.sync.acquire("k", cost=20)
    assert limiter.sync.peek("k").remaining == 65


def test_step__refused_after_the_clock_was_set_back__moves_the_state_to_now(
    store: Store, clock: ManualClock
) -> None:
    limiter = worker(store, LimitConfig(1, 10, lease=1.0))
    limiter.sync.decide("k", cost=10)
    clock.advance(-100)
    assert limiter.sync.decide("k").allowed is False
    clock.advance(1)
    assert limiter.sync.decide("k").allowed is True


def test_return_lease__more_than_the_ledger_holds__returns_only_that() -> None:
    """The key was reset meanwhile."""
    strategy = LeasedTokenBucketStrategy(10, 1, 1_000_000_000, 25_000)
    state, _ = strategy.step(None, 0, 5)
    assert state is not None
    grant = strategy.grant_lease(state, 0, 2, 0)
    returned = strategy.return_lease(grant.state, 0, EndedLease(grant.lease_id, 4, 4), 0)
    assert strategy.usage(returned, 0).remaining == 7
    assert strategy.grant_lease(state, 0, 0, 0).state == state


def test_script__key_of_another_type__is_named_in_the_error(valkey: Server, clock: ManualClock) -> None:
    with redis_store(valkey, clock) as store:
        limiter = worker(store)
        command(valkey, "SET", "rate_limiter:tested:k", "mine")
        with pytest.raises(StateTypeError, match="'rate_limiter:tested:k' does not hold"):
            limiter.sync.acquire("k")


def test_cancelled__while_requesting_a_lease__returns_it(valkey: Server) -> None:
    async def main() -> int:
        with redis_store(valkey) as store:
            limiter = worker(store)
            await limiter.acquire("k", cost=10)
            task = asyncio.ensure_future(limiter.acquire("k", cost=10))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await limiter.acquire("other")
            remaining = (await limiter.peek("k")).remaining
            await limiter.aclose()
            return remaining

    assert asyncio.run(main()) == 90


def test_fork__child__starts_without_leases(clock: ManualClock) -> None:
    limiter = worker(MemoryStore(clock))
    at_work(limiter)
    bound = limiter._flows.bound
    assert isinstance(bound, LeaseClient)
    bound.after_fork()
    with pytest.raises(WouldBlock):
        bound.try_acquire("k", 1)


def test_algorithm__of_a_leased_limit__is_the_strategy_in_effect(store: Store) -> None:
    bound = worker(store)._flows.bound
    assert asyncio.run(bound.algorithm_async()) is bound.algorithm
    assert bound.cached_algorithm is bound.algorithm


@pytest.mark.parametrize("one_at_a_time", [True, False])
def test_lease__many_threads__grant_exactly_the_capacity(
    monkeypatch: pytest.MonkeyPatch, *, one_at_a_time: bool
) -> None:
    """Also without the GIL, where all threads use the client's lock."""
    monkeypatch.setattr(client, "HAS_GIL", one_at_a_time)
    limiter = worker(MemoryStore(), LimitConfig(5000 / 3600, 5000, lease=10)).sync
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            granted = sum(threads.map(lambda _: sum(limiter.acquire("k") for _ in range(1_000)), range(8)))
    finally:
        sys.setswitchinterval(switch)
    assert granted == 5_000 + (limiter.stats("k").requests_last_minute - 5_000)


deeds = st.one_of(
    *[st.tuples(st.just("take"), st.sampled_from([1, 1, 2, 5, 20, 100]))] * 6,
    *[st.tuples(st.sampled_from(["cost 3", "decide", "give back", "killed"]), st.just(1))],
)
lives = st.sampled_from([0, 0, 0, 0.05, 0.2, 0.3, 0.45, 0.499, 0.5, 0.501, 0.7, 0.999, 1.0, 3.0])
"""Pauses in lifetimes of a lease: most errors would show at the ends of its halves."""


@pytest.mark.unmeasured
@settings(max_examples=max_examples(500), deadline=None)
@given(
    strategy=st.sampled_from([LimitStrategy.TOKEN_BUCKET, LimitStrategy.SLIDING_WINDOW]),
    capacity=st.integers(4, 60),
    refilled=st.sampled_from([0.1, 1, 3]),
    steps=st.lists(st.tuples(lives, st.integers(0, 2), deeds), min_size=5, max_size=40),
)
def test_limit__several_workers_that_lease_and_die__is_never_exceeded(
    strategy: LimitStrategy,
    capacity: int,
    refilled: float,
    steps: list[tuple[float, int, tuple[str, int]]],
) -> None:
    """``refilled`` is the fraction of a bucket that is refilled during a lease."""
    clock = ManualClock(1_800_000_000)
    store = MemoryStore(clock)
    rate = max(1, round(refilled * capacity / 0.1))
    window = strategy is LimitStrategy.SLIDING_WINDOW
    config = LimitConfig(rate, capacity * (100 if window else 1), 10, strategy, lease=0.1)
    workers = [worker(store, config) for _ in range(3)]
    grants: list[tuple[int, int]] = []
    for pause, number, (deed, times) in steps:
        clock.advance(pause * 0.1)
        limiter, granted = workers[number], 0
        if deed == "take":
            granted = take_units(limiter, times * (20 if window else 1))
        elif deed == "cost 3":
            granted = 3 * limiter.sync.acquire("k", 3)
        elif deed == "decide":
            granted = limiter.sync.decide("k").allowed
        elif deed == "give back":
            assert limiter._flows.lease_client is not None
            limiter._flows.lease_client.return_all()
        else:
            workers[number] = worker(store, config)
        grants += [(clock.now_ns(), clock.now_ns())] * granted
    if window:
        assert not grants or most_in_window(grants, 10) <= config.capacity
    else:
        assert not grants or most_above_bucket(grants, rate, capacity) <= 0


def test_limiter__same_name_other_lease__is_refused(store: Store) -> None:
    limiter = worker(store)
    with pytest.raises(ValueError, match=r"name 'tested' is in use .* \(token_bucket, lease 1 s\)"):
        worker(store, replace(SLOW, lease=False))
    assert limiter.store.clock is not MONOTONIC


def test_leased_units__leases_of_two_limits__are_counted_by_limit() -> None:
    store = MemoryStore()
    first = BaseLimiter(LimitConfig(1, 100, lease=10), store, "first")
    second = BaseLimiter(LimitConfig(1, 100, lease=10), store, "second")
    for _ in range(3):  # leases of 1 and 2 units
        first.sync.acquire(LimitKey("a", "b"))
    assert leased_units(store) == {}
    assert first.sync.acquire("a:b")  # a lease of 4
    assert second.sync.acquire()
    assert leased_units(store) == {"first": 3}
    assert leased_units(MemoryStore()) == {}
    first._flows.lease_client.return_all()  # type: ignore[union-attr]


def lease_client(limiter: BaseLimiter) -> LeaseClient:
    found = limiter._flows.lease_client
    assert found is not None
    return found


def test_parse__error_of_a_key__names_limit_and_key() -> None:
    operation = LeaseOperation(lease_client(worker(MemoryStore()))._source, "k", 1, 1)
    with pytest.raises(StateTypeError, match=r"rate_limiter:tested:k.*WRONGTYPE Operation"):
        operation.parse([b"WRONGTYPE Operation against a key", 0, 0, 0])


def test_fallback__lease__takes_exactly_the_needed_units(clock: ManualClock) -> None:
    operation = LeaseOperation(lease_client(worker(MemoryStore()))._source, "k", 1, 8)
    now_us = clock.now_ns() // 1000
    local, share = MemoryStore(clock), operation.fallback(Outage(0.0, now_us - 10**12, "gone", 1))
    assert local.apply(share) == Lease(1, 0, 0, 0)
    ending = operation.fallback(Outage(0.0, 0, "gone", 1, is_ending=True))
    assert local.apply(ending) == Lease(0, 0, 50_000, 0)


def test_key_lease__new__holds_and_remembers_nothing() -> None:
    lease = KeyLease("k")
    names = [name for name in KeyLease.__slots__ if name not in {"key", "next_size", "is_requesting"}]
    assert [getattr(lease, name) for name in names] == [0] * 9
    assert lease.is_requesting is False


def test_lease__of_an_odd_duration__has_whole_times(clock: ManualClock) -> None:
    limiter = worker(MemoryStore(clock), LimitConfig(0.001, 100, lease=0.001001))
    source, sent_ns = lease_client(limiter)._source, clock.now_ns()
    assert (source.ttl_us, type(source.ttl_us)) == (500, int)
    take_units(limiter, 2)
    lease = key_lease(limiter)
    assert (lease.ends_ns - sent_ns, lease.return_at_ns - sent_ns) == (500_000, 375_000)
    assert isinstance(lease.return_at_ns, int)


def test_refusal__repeated_locally__waits_a_whole_number_of_microseconds(clock: ManualClock) -> None:
    limiter = worker(MemoryStore(clock), LimitConfig(1, 1, lease=1.0))
    take_units(limiter, 2)
    wait_us = lease_client(limiter).try_acquire("k", 1)
    assert (wait_us, type(wait_us)) == (1_000_000, int)


def test_held_units__several_keys__are_added_until_their_leases_end(clock: ManualClock) -> None:
    limiter = worker(MemoryStore(clock))
    for key in "ab":
        assert all(limiter.sync.acquire(key) for _ in range(2))
    holder = lease_client(limiter)
    assert holder.held_units() == 2
    clock.advance((key_lease(limiter, "a").ends_ns - clock.now_ns()) / 1e9)
    assert holder.held_units() == 0


def test_end_lease__twice__has_nothing_left_to_return(clock: ManualClock) -> None:
    limiter = worker(MemoryStore(clock))
    at_work(limiter)
    holder, lease = lease_client(limiter), key_lease(limiter)
    assert holder._end_lease(lease)[1:] == (7, 7)
    assert holder._end_lease(lease)[1:] == (0, 0)
    assert (lease.size, lease.ends_ns) == (0, 0)


@pytest.mark.parametrize(("has_gil", "name"), [(True, "try_acquire"), (False, "try_acquire_locked")])
def test_fast_path__with_and_without_the_gil__uses_the_lease(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, has_gil: bool, name: str
) -> None:
    monkeypatch.setattr(client, "HAS_GIL", has_gil)
    limiter = worker(MemoryStore(clock))
    at_work(limiter)
    holder = lease_client(limiter)
    assert holder.try_acquire.__name__ == name
    assert holder.try_acquire("k", 3) == 0
    assert key_lease(limiter).left == 4


def test_return_all__leases__asks_for_no_units(clock: ManualClock) -> None:
    class Recording(Counting):
        operations: ClassVar[list[Any]] = []

        def apply(self, operation: Operation[Any]) -> Any:
            self.operations.append(operation)
            return super().apply(operation)

    limiter = worker(Recording(MemoryStore(clock)))
    at_work(limiter)
    lease_client(limiter).return_all()
    assert Recording.operations[-1].script_args()[:2] == (0, 0)


def test_leased_units__two_clients_of_one_limit__are_added() -> None:
    store = MemoryStore()
    limiters = [BaseLimiter(LimitConfig(1, 100, lease=10), store, "same") for _ in range(2)]
    for limiter in limiters:
        assert all(limiter.sync.acquire() for _ in range(2))
        assert leased_units(store) == {"same": 1 if limiter is limiters[0] else 2}
    for limiter in limiters:
        lease_client(limiter).return_all()


class PausedStrategy:
    """A strategy that an operator has paused for 5 µs."""

    def __init__(self, strategy: TokenBucketStrategy) -> None:
        self._strategy = strategy

    def effective_at(self, now_us: int) -> tuple[TokenBucketStrategy, int, None]:
        return self._strategy, 5, None


def operation_of(strategy: Any) -> LeaseOperation:
    operation = LeaseOperation(lease_client(worker(MemoryStore()))._source, "k", 2, 8)
    source: Any = SimpleNamespace(strategy=strategy, ttl_us=1000)
    operation._source = source
    return operation


def test_step__paused_and_empty_when_the_clock_is_set_back__moves_the_state() -> None:
    strategy = TokenBucketStrategy(10, 1, 100_000)
    empty = strategy.step(None, 10**12, 10)[0]
    moved, wait_us = strategy.step(empty, 10**12 - 10**6, 2)
    assert moved is not None
    assert wait_us > 5
    new, lease = operation_of(PausedStrategy(strategy))._step(empty, 0, 10**12 - 10**6)
    assert (new, lease) == (moved, Lease(0, 0, wait_us, 0))


def test_step__others_wait__takes_only_what_is_needed() -> None:
    operation = LeaseOperation(lease_client(worker(MemoryStore()))._source, "k", 2, 8)
    assert [operation._step(None, ahead, 10**12)[1].granted for ahead in (0, 3)] == [8, 2]


class FixedTime:
    """A client whose clock stands still, its leases, and what it schedules and applies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, clock: Any) -> None:
        self.scheduled: list[int] = []
        self.applied: list[Any] = []
        self.client = lease_client(worker(MemoryStore(clock)))
        self.now_ns = 10**15
        self.lease = KeyLease("k")
        scheduler = SimpleNamespace(schedule=lambda at_ns, *_: self.scheduled.append(at_ns))
        monkeypatch.setattr(client, "SCHEDULER", SimpleNamespace(get=lambda: scheduler))
        monkeypatch.setattr(self.client, "_now_ns", lambda: self.now_ns)
        monkeypatch.setattr(self.client.store, "apply", self.applied.append)


def test_end_lease__used_up_at_its_end_or_a_third_left__next_one_is_as_large(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    fixed = FixedTime(monkeypatch, clock)
    sizes = []
    for left, ends_ns in ((0, 0), (0, 1), (1, 1)):
        fixed.lease.left, fixed.lease.size, fixed.lease.next_size = left, 3, 4
        fixed.lease.ends_ns = fixed.now_ns + ends_ns
        fixed.client._end_lease(fixed.lease)
        sizes.append(fixed.lease.next_size)
    assert sizes == [4, 8, 4]


def test_schedule_return__scheduled_time_reached__schedules_again_but_not_on_a_manual_clock(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    for store_clock, scheduled in ((MONOTONIC, [7]), (clock, [])):
        fixed = FixedTime(monkeypatch, store_clock)
        fixed.lease.return_at_ns, fixed.lease.scheduled_ns = 7, fixed.now_ns
        fixed.client._schedule_return(fixed.lease)
        assert fixed.scheduled == scheduled
        fixed.lease.scheduled_ns = fixed.now_ns + 1
        fixed.client._schedule_return(fixed.lease)
        assert fixed.scheduled == scheduled


@pytest.mark.parametrize(("late_ns", "scheduled", "applied"), [(-1, 1, 0), (0, 0, 1), (9, 0, 1), (10, 0, 0)])
def test_return_if_due__any_moment__schedules_returns_or_lets_it_expire(
    monkeypatch: pytest.MonkeyPatch, late_ns: int, scheduled: int, applied: int
) -> None:
    fixed = FixedTime(monkeypatch, MONOTONIC)
    fixed.lease.left = fixed.lease.lent = 3
    fixed.lease.return_at_ns, fixed.lease.ends_ns = fixed.now_ns - late_ns, fixed.now_ns - late_ns + 10
    fixed.client._return_if_due(fixed.lease)
    assert (len(fixed.scheduled), len(fixed.applied)) == (scheduled, applied)
    assert [operation.script_args() for operation in fixed.applied] == [(0, 0, 0, 3, 3)] * applied


def test_key_lease__key_with_parts__is_found_by_key_and_by_text(clock: ManualClock) -> None:
    holder, key = lease_client(worker(MemoryStore(clock))), LimitKey("a", "b")
    lease = holder._key_lease(key, "a:b")
    assert lease is holder._leases[key] is holder._leases["a:b"]


def test_sweep__due__drops_what_has_ended_and_waits_for_the_lifetime_of_a_lease(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    fixed = FixedTime(monkeypatch, clock)
    holder, live = fixed.client, KeyLease("live")
    fixed.lease.ends_ns, live.ends_ns = fixed.now_ns, fixed.now_ns + 1
    holder._leases.update({"k": fixed.lease, "live": live})
    holder._next_sweep_ns = fixed.now_ns + 1
    holder._sweep()
    assert set(holder._leases) == {"k", "live"}
    holder._next_sweep_ns = fixed.now_ns
    holder._sweep()
    assert set(holder._leases) == {"live"}
    assert holder._next_sweep_ns == fixed.now_ns + 500_000_000
