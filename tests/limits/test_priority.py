"""Priority classes (F9): a lower class leaves the headroom of the higher ones untouched, everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from comporta import BaseLimiter, Degradation, LimitConfig, LimitGroup, LimitStrategy, priority
from comporta.flow import run
from comporta.limits.config import class_headrooms
from comporta.limits.operation import on_local_share
from comporta.limits.priority import (
    DEFAULT_CALLER,
    NO_HEADROOM,
    PRIORITIES,
    Caller,
    Headroom,
    has_own_caller,
    resolve_caller,
)
from comporta.limits.strategies.token_bucket import TokenBucketStrategy
from comporta.stores.memory import MemoryStore
from comporta.stores.outage_info import Outage
from comporta.testing import ManualClock

INTERACTIVE, NORMAL, BATCH = range(len(PRIORITIES))

Take = Callable[..., bool]


def limiter_of(config: LimitConfig, clock: ManualClock | None = None) -> BaseLimiter:
    return BaseLimiter(config, MemoryStore(clock or ManualClock()), "tested")


@pytest.fixture(params=["blocking", "awaiting"])
def face(request: pytest.FixtureRequest) -> Callable[[Any], Take]:
    """Return ``acquire`` of a limiter or a group, for threads or for coroutines."""
    if request.param == "blocking":
        return lambda target: target.sync.acquire
    return lambda target: lambda *args, **options: asyncio.run(target.acquire(*args, **options))


def count_granted(take: Take, key: Any = "k", **options: Any) -> int:
    """Return how many units are granted until the first refusal."""
    count = 0
    while take(key, **options):
        count += 1
    return count


@pytest.mark.parametrize("strategy", [s for s in LimitStrategy if s is not LimitStrategy.LEAKY_BUCKET])
def test_batch__default_headroom__leaves_half_of_the_capacity(
    face: Callable[[Any], Take], strategy: LimitStrategy
) -> None:
    take = face(limiter_of(LimitConfig(1, 10, 10, strategy)))
    assert count_granted(take, priority="batch") == 5
    assert count_granted(take) == 5
    assert count_granted(take, priority="interactive") == 0


def test_headroom__configured_for_each_class__is_left_to_the_higher_ones(
    face: Callable[[Any], Take],
) -> None:
    config = LimitConfig(1, 10, batch_headroom=8, normal_headroom=3)
    take = face(limiter_of(config))
    assert count_granted(take, priority="batch") == 2
    assert count_granted(take) == 5
    assert count_granted(take, priority="normal") == 0
    assert count_granted(take, priority="interactive") == 3


def test_batch__capacity_of_one__never_starves(face: Callable[[Any], Take]) -> None:
    take = face(limiter_of(LimitConfig(1, 1, batch_headroom=1)))
    assert count_granted(take, priority="batch") == 1


def test_batch__cost_of_the_whole_capacity__needs_an_unused_limit(face: Callable[[Any], Take]) -> None:
    clock = ManualClock()
    take = face(limiter_of(LimitConfig(1, 10), clock))
    assert take("k", 10, priority="batch")
    clock.advance(9)
    assert not take("k", 10, priority="batch")
    clock.advance(1)
    assert take("k", 10, priority="batch")


def test_batch__leaky_bucket__takes_a_turn_only_if_none_is_assigned() -> None:
    clock = ManualClock()
    limiter = limiter_of(LimitConfig(1, 10, strategy=LimitStrategy.LEAKY_BUCKET), clock)
    assert limiter.sync.acquire("k", priority="batch")
    assert not limiter.sync.acquire("k", priority="batch")
    assert limiter.sync.acquire("k", timeout=5, priority="batch")  # it waits for the end of all turns
    assert clock.now_ns() >= 1e9
    assert limiter.sync.acquire("k", timeout=5)


def test_group__class__leaves_the_headroom_of_every_limit(face: Callable[[Any], Take]) -> None:
    store = MemoryStore(ManualClock())
    wide = BaseLimiter(LimitConfig(1, 100), store, "wide")
    narrow = BaseLimiter(LimitConfig(1, 10, batch_headroom=7), store, "narrow")
    take = face(LimitGroup(wide, narrow))
    assert count_granted(take, [None, "k"], priority="batch") == 3
    assert count_granted(take, [None, "k"], timeout=0.001) == 7


def test_context__class_and_owner__apply_to_all_calls_inside() -> None:
    limiter = limiter_of(LimitConfig(1, 10))
    with priority("batch", owner="job 1"):
        assert resolve_caller(None, None) == Caller(BATCH, "job 1")
        with priority("interactive"):
            assert resolve_caller(None, None) == Caller(INTERACTIVE, "job 1")
        with priority(owner="job 2"):
            assert resolve_caller(None, None) == Caller(BATCH, "job 2")
        assert has_own_caller()
        assert count_granted(limiter.sync.acquire) == 5
        assert count_granted(limiter.sync.acquire, priority="normal") == 5
    assert resolve_caller(None, None) is DEFAULT_CALLER
    assert not has_own_caller()


def test_context__tasks_and_threads__inherit_it() -> None:
    async def main() -> list[Caller]:
        with priority("batch"):
            task = asyncio.create_task(asyncio.to_thread(resolve_caller, None, None))
        return [await task, resolve_caller(None, None)]

    assert asyncio.run(main()) == [Caller(BATCH), DEFAULT_CALLER]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"priority": "urgent"}, ValueError, "priority must be one of 'interactive', 'normal', 'batch'"),
        ({"priority": 1}, ValueError, "got 1"),
        ({"owner": 7}, TypeError, "owner must be a str, got 7"),
        ({"owner": ""}, ValueError, "owner must be 1 to 200 characters, got 0"),
        ({"owner": "x" * 201}, ValueError, "owner must be 1 to 200 characters, got 201"),
    ],
)
def test_acquire__invalid_class_or_owner__is_an_error(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        limiter_of(LimitConfig(1, 10)).sync.acquire("k", timeout=1, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_headroom": 11}, "batch_headroom must be 0 to 10, got 11"),
        ({"batch_headroom": 2, "normal_headroom": 3}, "batch_headroom must be 3 to 10, got 2"),
        ({"normal_headroom": -1}, "normal_headroom must be 0 to 10, got -1"),
    ],
)
def test_config__invalid_headroom__is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LimitConfig(1, 10, **options)
    with pytest.raises(ValueError, match=message):
        LimitConfig.parse("1/s burst 10", **options)


def test_config__normal_headroom_above_half__batch_leaves_as_much() -> None:
    assert class_headrooms(LimitConfig(1, 10, normal_headroom=7))[BATCH] == Headroom(7, 10)
    assert class_headrooms(LimitConfig(1, 10))[NORMAL] == Headroom(0, 10)


def test_headroom__degraded_limit__shrinks_with_the_capacity() -> None:
    limiter = limiter_of(LimitConfig(1, 10, batch_headroom=8))
    run(Degradation(limiter, drop=0.5)._flows.lower_flow(None, 0))
    assert limiter.sync.peek("k").limit == 5
    assert count_granted(limiter.sync.acquire, priority="batch") == 1  # 5 - 8 * 5 / 10
    assert count_granted(limiter.sync.acquire) == 4


def test_headroom__share_during_an_outage__shrinks_with_the_share() -> None:
    limiter = limiter_of(LimitConfig(10, 10, batch_headroom=8))
    demand = run(limiter._flows.demand_flow("k", 1, BATCH))
    share = on_local_share(demand, Outage(0.0, 0, "test", 5)).strategy
    assert share.params.capacity == 2
    assert demand.headroom.floor(share, None, 0, 1) == 1
    assert demand.headroom.floor(share, None, 0, 2) == 0


def test_headroom__tokens_on_lease__shrinks_with_what_is_left() -> None:
    strategy = LimitConfig(1, 10, lease=1.0).build_strategy()
    state, _ = strategy.step(None, 0, 5)
    assert state is not None
    leased = strategy.grant_lease(state, 0, 5, 10**6).state
    headroom = Headroom(8, 10)
    assert headroom.floor(strategy, None, 0, 1) == 8
    assert headroom.floor(strategy, leased, 0, 1) == 4
    assert headroom.floor(strategy, leased, 0, 5) == 0
    assert NO_HEADROOM.floor(TokenBucketStrategy(1, 1, 1), None, 0, 1) == 0


def test_lease__caller_with_headroom__takes_from_the_store_and_not_from_the_lease() -> None:
    limiter = limiter_of(LimitConfig(1, 100, lease=1.0))
    assert count_granted(limiter.sync.acquire, priority="batch") == 50
    assert count_granted(limiter.sync.acquire) == 50


def test_waiting_batch__interactive_caller__is_served_first_and_not_refused() -> None:
    """Waiting batch callers of the same process must not refuse interactive ones, waiting or not."""

    async def main() -> list[str]:
        limiter = BaseLimiter(LimitConfig(50, 2, batch_headroom=1), MemoryStore(), "tested")
        order: list[str] = []

        async def wait(name: str, timeout: float | None) -> None:
            assert await limiter.acquire("k", timeout=timeout, priority=name)
            order.append(name)

        assert await limiter.acquire("k", cost=2)
        batch = [asyncio.create_task(wait("batch", None)) for _ in range(3)]
        await asyncio.sleep(0)
        interactive = asyncio.create_task(wait("interactive", None))
        await interactive
        await limiter.release("k", 2)
        assert await limiter.acquire("k", priority="interactive")
        await asyncio.gather(*batch)
        return order

    assert asyncio.run(main()) == ["interactive", "batch", "batch", "batch"]
