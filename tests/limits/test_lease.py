"""Leases: what a worker takes at once, uses by itself, and gives back, on every store.

Time is moved by hand here, so that nobody comes by to give back what is left; ``test_keeper.py`` is about
that. Two limiters on one store are two workers: each has leases of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.processes.accounting import most_above_bucket, most_in_window
from tests.support import command, examples, memory_store, redis_store, shared_store

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
from comporta.limits import leased
from comporta.limits.lease import LeaseOperation
from comporta.limits.leased import Hand, LeasedBound
from comporta.limits.leased_bucket import LeasedTokenBucket
from comporta.limits.rule import Ended
from comporta.stores.base import Busy, Operation, Store
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server

MakeStore = Callable[[ManualClock], AbstractContextManager[Store]]

SLOW = LimitConfig(0.001, 100, lease=1.0)
"""Nothing comes in by itself while a test runs."""


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock, valkey: Server) -> Iterator[Store]:
    makers: dict[str, MakeStore] = {
        "memory": memory_store,
        "shared": shared_store,
        "redis": lambda clock: redis_store(valkey, clock),
    }
    with makers[request.param](clock) as made:
        yield made


class Counting:
    """A store that counts what it is asked, and can be told to fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls = 0
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        if name == "bind":
            raise AttributeError(name)  # so that every decision that is not local is counted
        return getattr(self.store, name)

    def apply(self, operation: Operation[Any]) -> Any:
        self.calls += 1
        if self.broken:
            raise StateError("broken")
        return self.store.apply(operation)

    async def apply_async(self, operation: Operation[Any]) -> Any:
        return self.apply(operation)


def worker(store: Store | Counting, config: LimitConfig = SLOW) -> BaseLimiter:
    return BaseLimiter(config, store, "tested")


def hand_of(limiter: BaseLimiter, key: str = "k") -> Hand:
    assert limiter.verbs.leases is not None
    return limiter.verbs.leases._hands[key]


def taken(limiter: BaseLimiter, times: int) -> int:
    return sum(limiter.sync.acquire("k") for _ in range(times))


async def once(limiter: BaseLimiter) -> bool:
    """Ask on an event loop of its own."""
    try:
        return await limiter.acquire("k")
    finally:
        await limiter.aclose()


def at_work(limiter: BaseLimiter) -> None:
    """Take until a lease of 8 is in hand, of which one is used: 1 + 2 + 4 + 1 taken."""
    assert taken(limiter, 8) == 8
    assert (hand_of(limiter).size, hand_of(limiter).left) == (8, 7)


def test_lease__used_up__is_followed_by_one_twice_as_large(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    assert taken(limiter, 63) == 63
    assert store.calls == 6  # 1 + 2 + 4 + 8 + 16 + 32


def test_lease__of_one_worker__is_half_of_the_limit_at_the_most(store: Store) -> None:
    limiter = worker(store)
    taken(limiter, 63)
    assert limiter.sync.acquire("k") is True
    assert hand_of(limiter).size == 37  # all there was: less than half of 100, and than twice 32
    assert taken(limiter, 100) == 36


def test_lease__with_several_workers__is_a_share_for_each(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    store.workers = 10  # type: ignore[attr-defined]
    limiter = worker(store)
    assert taken(limiter, 50) == 50
    assert hand_of(limiter).size == 5


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_lease__any_strategy__grants_exactly_the_capacity_at_once(
    store: Store, strategy: LimitStrategy
) -> None:
    config = LimitConfig(0.001, 300, 1000, strategy, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    granted = sum(taken(limiter, 1) for _ in range(300) for limiter in (first, second))
    assert granted == (1 if strategy is LimitStrategy.LEAKY_BUCKET else 300)


def test_lease__in_hand_of_another__counts_against_the_capacity(store: Store, clock: ManualClock) -> None:
    config = LimitConfig(1000, 100, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    at_work(first)
    clock.advance(0.4)  # 400 would have come in
    assert second.sync.peek("k").remaining == 93
    assert taken(second, 200) == 93
    assert taken(first, 200) == 7


def test_lease__ended_half_unused__is_followed_by_one_half_as_large(store: Store, clock: ManualClock) -> None:
    limiter = worker(store)
    at_work(limiter)
    clock.advance(0.5)  # half of its life: no longer to be used
    assert limiter.sync.acquire("k") is True
    assert hand_of(limiter).size == 4
    assert limiter.sync.peek("k").remaining == 100 - 8 - 4  # what was not used is there again


def test_lease__ended_mostly_used__is_followed_by_one_as_large(store: Store, clock: ManualClock) -> None:
    limiter = worker(store)
    at_work(limiter)
    taken(limiter, 5)
    clock.advance(0.5)
    assert limiter.sync.acquire("k") is True
    assert hand_of(limiter).size == 8


def test_lease__worker_gone__holds_up_the_others_for_its_life_only(store: Store, clock: ManualClock) -> None:
    config = LimitConfig(1000, 100, lease=1.0)
    at_work(worker(store, config))
    other = worker(store, config)
    clock.advance(0.4)
    assert other.sync.peek("k").remaining == 93
    clock.advance(0.599)
    assert other.sync.peek("k").remaining == 93
    clock.advance(0.001 + 0.007)  # from the end of its life on the bucket fills up
    assert other.sync.peek("k").remaining == 100


def test_lease__worker_gone__others_are_told_when_there_is_room_again(
    store: Store, clock: ManualClock
) -> None:
    """The bucket fills only as far as the book leaves room, and the promised wait knows it."""
    config = LimitConfig(1000, 10, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    taken(first, 4)  # 1, 2, and one of 4
    assert hand_of(first).left == 3
    clock.advance(0.25)
    refused = second.sync.decide("k", cost=9)
    assert (refused.allowed, refused.remaining) == (False, 7)
    assert refused.retry_after == pytest.approx(0.752)  # the book forgets after a second, then two come in
    assert refused.reset_after == pytest.approx(0.753)
    clock.advance(0.7519)
    assert second.sync.decide("k", cost=9).allowed is False
    clock.advance(0.0001)
    assert second.sync.decide("k", cost=9).allowed is True


def test_lease__used_at_the_very_end__leaves_no_more_for_the_others_a_moment_later(
    store: Store, clock: ManualClock
) -> None:
    """The bucket had room for less while it was out, however long ago that began."""
    config = LimitConfig(1000, 100, lease=1.0)
    first, second = worker(store, config), worker(store, config)
    clock.advance(0.4999)  # just before a slice of the book ends
    at_work(first)
    clock.advance(0.4999)  # just before the next one does
    assert hand_of(first).left == taken(first, 7) == 7
    clock.advance(0.0002)
    assert taken(second, 200) == 93


def test_refusal__remembered__is_answered_here_until_the_promised_moment(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store, LimitConfig(20, 4, lease=True))
    taken(limiter, 5)
    calls = store.calls
    assert taken(limiter, 10) == 0
    assert store.calls == calls
    assert limiter.verbs.bound.attempt("k", 1) == 50_000
    clock.advance(0.04999)
    assert limiter.verbs.bound.attempt("k", 1) == 10
    clock.advance(0.00001)
    assert taken(limiter, 1) == 1
    assert store.calls == calls + 1


def test_refusal__for_long__is_asked_about_again_after_100_ms(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    first, second = worker(store), worker(store)
    at_work(first)
    second.sync.acquire("k", cost=85)
    assert second.sync.acquire("k") is False
    first.sync.release("k", cost=1)
    assert second.sync.acquire("k") is False
    clock.advance(0.1)
    assert second.sync.acquire("k") is True


def test_refusal__of_more_than_one__is_not_remembered_against_one(store: Store) -> None:
    limiter = worker(store)
    limiter.sync.acquire("k", cost=95)
    assert limiter.sync.acquire("k", cost=10) is False
    assert limiter.sync.acquire("k") is True


def test_release__after_a_refusal__lets_this_worker_ask_at_once(store: Store) -> None:
    limiter = worker(store)
    limiter.sync.release("unknown")
    assert taken(limiter, 101) == 100
    limiter.sync.release("k")
    assert taken(limiter, 2) == 1


def test_reset__with_a_lease_in_hand__starts_anew(store: Store) -> None:
    limiter = worker(store)
    limiter.sync.reset("unknown")
    assert taken(limiter, 60) == 60
    limiter.sync.reset("k")
    assert taken(limiter, 101) == 100


def test_change__raised__is_obeyed_here_at_once_and_keeps_the_lease(store: Store) -> None:
    limiter = worker(store)
    assert taken(limiter, 101) == 100
    limiter.sync.change("200/hour burst 300")
    limiter.sync.reset("k")
    assert taken(limiter, 400) == 300
    assert hand_of(limiter).want > 1
    limiter.sync.change(None)
    limiter.sync.reset("k")
    assert taken(limiter, 101) == 100


def test_change__by_a_program_that_does_not_lease__leaves_the_book_in_force(
    store: Store, clock: ManualClock
) -> None:
    limiter = worker(store, LimitConfig(1000, 100, lease=1.0))
    at_work(limiter)
    plain = LimitConfig(1000, 100).rule().numbers.written("100")
    limiter.verbs.config = SLOW  # whatever it is: only the record counts
    from comporta.stores.records import Write  # noqa: PLC0415 - only here

    store.apply(Write("rate_limiter_change", "tested", plain, None, followed=True))
    clock.advance(0.4)
    assert limiter.sync.peek("k").remaining == 93
    assert taken(limiter, 9) == 9


def test_cost__covered_by_the_lease_in_hand__is_taken_from_it(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    at_work(limiter)
    calls = store.calls
    assert limiter.verbs.bound.take("k", 5) == 0
    assert (store.calls, hand_of(limiter).left) == (calls, 2)


def test_cost__above_the_lease_in_hand__has_what_is_left_of_it_too(store: Store) -> None:
    limiter = worker(store)
    at_work(limiter)
    assert limiter.sync.acquire("k", cost=92) is True
    assert limiter.sync.acquire("k") is False


def test_waiting__with_leases__is_served_when_it_was_promised(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(10, 5, lease=True))
    assert taken(limiter, 6) == 5
    before = clock.now_ns()
    assert limiter.sync.acquire("k", timeout=1) is True
    assert clock.now_ns() - before == 100_000_000
    assert limiter.sync.acquire("k", timeout=0.05) is False


def test_group__with_a_leased_limit__obeys_the_book(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(1000, 100, lease=1.0))
    at_work(limiter)
    clock.advance(0.4)
    group = LimitGroup(limiter)
    assert group.sync.acquire(["k"], cost=94) is False
    assert group.sync.acquire(["k"], cost=93) is True


def test_fixed_window__over__ends_its_leases(store: Store, clock: ManualClock) -> None:
    config = LimitConfig(1, 1000, 10, LimitStrategy.FIXED_WINDOW, lease=10)
    assert config.lease_us == 100_000
    limiter = worker(store, config)
    limiter.sync.acquire("other")
    at_work(limiter)
    clock.advance(9.99)
    assert taken(limiter, 2) == 2  # in a window that ends in 10 ms
    assert hand_of(limiter).ends_ns == clock.now_ns() + 10_000_000
    clock.advance(0.01)
    assert taken(limiter, 1001) == 1000


def test_fixed_window__lease_ended_in_time__is_given_back(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(1, 1000, 10, LimitStrategy.FIXED_WINDOW, lease=True))
    at_work(limiter)
    clock.advance(0.03)
    assert taken(limiter, 1) == 1
    assert limiter.sync.peek("k").remaining == 1000 - 8 - 4


def test_sliding_window__lease_ended__is_given_back_as_long_as_it_may_be_used(
    store: Store, clock: ManualClock
) -> None:
    config = LimitConfig(1, 1000, 10, LimitStrategy.SLIDING_WINDOW, lease=10)
    limiter = worker(store, config)
    at_work(limiter)
    clock.advance(0.049)
    assert limiter.verbs.leases is not None
    limiter.verbs.leases.give_back()
    assert limiter.sync.peek("k").remaining == 992
    assert taken(limiter, 2) == 2  # of 4
    clock.advance(0.051)
    assert taken(limiter, 1) == 1  # of 2; too late for the others, which stay counted for their window
    assert limiter.sync.peek("k").remaining == 992 - 4 - 2


def test_leaky_bucket__turns__are_not_lent(store: Store, clock: ManualClock) -> None:
    limiter = worker(store, LimitConfig(10, 5, strategy=LimitStrategy.LEAKY_BUCKET, lease=True))
    for _ in range(5):
        assert taken(limiter, 3) == 1
        assert hand_of(limiter).left == 0
        clock.advance(0.1)
    assert limiter.sync.acquire("k", timeout=1) is True
    assert limiter.sync.acquire("k", timeout=1) is True  # the next turn of the queue, as ever


def test_keys__written_in_several_ways__share_what_is_in_hand(clock: ManualClock) -> None:
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


def test_keys__that_are_none__are_rejected(store: Store) -> None:
    with pytest.raises(TypeError, match="key must be a LimitKey, a str or None, got 5"):
        worker(store).sync.acquire(5)  # type: ignore[arg-type]


def test_hands__too_many_keys__are_asked_about_each_time(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(leased, "HANDS_MAX", 3)
    limiter = worker(MemoryStore(clock))
    assert all(limiter.sync.acquire(key) for key in "abcdabcd")
    hands = limiter.verbs.leases._hands  # type: ignore[union-attr]
    assert set(hands) == set("abc")
    clock.advance(1)
    assert limiter.sync.acquire("a") is True  # a lease of its own again
    assert limiter.sync.acquire("d") is True
    assert set(hands) == {"a", "d"}


def asking(limiter: BaseLimiter) -> Hand:
    """Leave a hand as it is while its lease is being asked for."""
    hand = hand_of(limiter)
    hand.asking = True
    return hand


def test_lease__being_asked_for__others_ask_for_one_each(store: Store) -> None:
    limiter = worker(store)
    taken(limiter, 3)
    hand = asking(limiter)
    assert taken(limiter, 2) == 2
    assert hand.size == 2
    assert asyncio.run(once(limiter)) is True
    assert limiter.sync.peek("k").remaining == 94


def test_lease__landing_while_another_is_refused__serves_it_too(clock: ManualClock) -> None:
    class Landing(Counting):
        def apply(self, operation: Operation[Any]) -> Any:
            wait_us = super().apply(operation)
            hand.left, hand.ends_ns = 2, clock.now_ns() + 1
            return wait_us

    counting, store = Counting(MemoryStore(clock)), Landing(MemoryStore(clock))
    limiter = worker(counting)
    taken(limiter, 100)
    hand = asking(limiter)
    hand.refused_ns = 0
    assert taken(limiter, 1) == 0
    store.store = counting.store
    limiter.verbs.leases._inner._store = store  # type: ignore[union-attr]
    assert taken(limiter, 1) == 1
    assert hand.left == 1


@pytest.mark.parametrize("face", ["blocking", "awaiting"])
def test_store__in_trouble__raises_and_is_asked_again(clock: ManualClock, face: str) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    at_work(limiter)
    taken(limiter, 7)
    store.broken = True
    for _ in range(2):
        with pytest.raises(StateError, match="broken"):
            limiter.sync.acquire("k") if face == "blocking" else asyncio.run(once(limiter))
    store.broken = False
    assert limiter.sync.acquire("k") is True
    assert hand_of(limiter).size > 1


def test_aclose__with_leases_in_hand__gives_them_back(store: Store) -> None:
    async def main() -> None:
        limiter = worker(store)
        for key in "kl":
            for _ in range(4):
                await limiter.acquire(key)
        await limiter.acquire("m")  # of which nothing is left
        await limiter.aclose()
        assert [(await limiter.peek(key)).remaining for key in "klm"] == [96, 96, 99]
        assert await limiter.acquire("k") is True
        await limiter.aclose()

    asyncio.run(main())


def test_give_back__store_in_trouble__leaves_it_to_time(clock: ManualClock) -> None:
    store = Counting(MemoryStore(clock))
    limiter = worker(store)
    at_work(limiter)
    store.broken = True
    assert limiter.verbs.leases is not None
    limiter.verbs.leases.give_back()
    assert hand_of(limiter).left == 0
    store.broken = False
    clock.advance(1)
    assert limiter.sync.peek("k").remaining == 85  # a lease that nobody ended is spent


@pytest.mark.parametrize("strategy", LimitStrategy)
def test_undo__of_a_lease__gives_back_all_of_it_but_turns(store: Store, strategy: LimitStrategy) -> None:
    limiter = worker(store, LimitConfig(0.001, 100, 1000, strategy, lease=1.0))
    limiter.sync.acquire("k", cost=10)
    assert limiter.verbs.leases is not None
    operation = LeaseOperation(limiter.verbs.leases._lender, "k", 2, 20)
    if strategy is LimitStrategy.LEAKY_BUCKET:
        limiter.sync.reset("k")
    reply = store.apply(operation)
    undo = operation.undo(reply)
    assert undo is not None
    assert undo.undo(store.apply(undo)) is None
    left = 80 if strategy is LimitStrategy.LEAKY_BUCKET else 90
    assert limiter.sync.peek("k").remaining == left


def test_take_back__clock_set_back__ignores_what_cannot_be_placed(store: Store, clock: ManualClock) -> None:
    limiter = worker(store)
    at_work(limiter)
    clock.advance(-100)
    assert limiter.sync.peek("k").remaining == 85
    assert taken(limiter, 1) == 1  # from the lease in hand
    limiter.sync.acquire("k", cost=20)
    assert limiter.sync.peek("k").remaining == 65


def test_step__refused_after_the_clock_was_set_back__anchors_the_state(
    store: Store, clock: ManualClock
) -> None:
    limiter = worker(store, LimitConfig(1, 10, lease=1.0))
    limiter.sync.decide("k", cost=10)
    clock.advance(-100)
    assert limiter.sync.decide("k").allowed is False
    clock.advance(1)
    assert limiter.sync.decide("k").allowed is True


def test_take_back__more_than_the_book_shows__gives_only_that() -> None:
    """Somebody has reset the key since."""
    rule = LeasedTokenBucket(10, 1, 1_000_000_000, 25_000)
    state, _ = rule.step(None, 0, 5)
    assert state is not None
    lent = rule.lend(state, 0, 2, 0)
    taken_back = rule.take_back(lent.state, 0, Ended(lent.name, 4, 4), 0)
    assert rule.view(taken_back, 0).remaining == 7
    assert rule.lend(state, 0, 0, 0).state == state


def test_script__key_of_another_kind__is_named(valkey: Server, clock: ManualClock) -> None:
    with redis_store(valkey, clock) as store:
        limiter = worker(store)
        command(valkey, "SET", "rate_limiter:tested:k", "mine")
        with pytest.raises(StateTypeError, match="'rate_limiter:tested:k' does not hold"):
            limiter.sync.acquire("k")


def test_cancelled__while_a_lease_is_under_way__gives_it_back(valkey: Server) -> None:
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


def test_fork__child__starts_with_empty_hands(clock: ManualClock) -> None:
    limiter = worker(MemoryStore(clock))
    at_work(limiter)
    bound = limiter.verbs.bound
    assert isinstance(bound, LeasedBound)
    bound.after_fork()
    with pytest.raises(Busy):
        bound.attempt("k", 1)


def test_stepper__of_a_leased_limit__is_the_rule_in_force(store: Store) -> None:
    bound = worker(store).verbs.bound
    assert asyncio.run(bound.stepper_async()) is bound.stepper


@pytest.mark.parametrize("one_at_a_time", [True, False])
def test_lease__many_threads_switched_often__grant_exactly_the_capacity(
    monkeypatch: pytest.MonkeyPatch, *, one_at_a_time: bool
) -> None:
    """Also on a Python without a global lock, where all go by the bound's own."""
    monkeypatch.setattr(leased, "ONE_THREAD_AT_A_TIME", one_at_a_time)
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
"""Pauses, in lives of a lease: most of what can go wrong does so at the edges of its halves."""


@settings(max_examples=examples(500), deadline=None)
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
    """``refilled`` is how much of a bucket comes in while a lease lives."""
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
            granted = taken(limiter, times * (20 if window else 1))
        elif deed == "cost 3":
            granted = 3 * limiter.sync.acquire("k", 3)
        elif deed == "decide":
            granted = limiter.sync.decide("k").allowed
        elif deed == "give back":
            assert limiter.verbs.leases is not None
            limiter.verbs.leases.give_back()
        else:
            workers[number] = worker(store, config)
        grants += [(clock.now_ns(), clock.now_ns())] * granted
    if window:
        assert not grants or most_in_window(grants, 10) <= config.capacity
    else:
        assert not grants or most_above_bucket(grants, rate, capacity) <= 0


def test_limit__equal_but_for_the_lease__is_another_in_one_program(store: Store) -> None:
    limiter = worker(store)
    with pytest.raises(ValueError, match=r"name 'tested' is in use .* \(token_bucket, lease 1 s\)"):
        worker(store, replace(SLOW, lease=False))
    assert limiter.store.clock is not MONOTONIC
