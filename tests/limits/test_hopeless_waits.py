"""Callers that cannot be served within their time-out do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support import memory_store, shared_store

from comporta import BaseLimiter, LimitConfig, LimitStrategy
from comporta.limits.wait_queue import WaitQueue
from comporta.stores.base import Store

HOUR = 3600.0


@pytest.fixture(params=[memory_store, shared_store])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with request.param() as opened:
        yield opened


@asynccontextmanager
async def waiting(limiter: BaseLimiter, count: int, cost: int = 1, key: str | None = None) -> Any:
    """Let callers without a time-out wait in a queue."""
    before = limiter._flows.wait_queue.count(key or "")
    tasks = [asyncio.create_task(limiter.acquire(key, cost, timeout=None)) for _ in range(count)]
    await asyncio.sleep(0)  # each of them runs until it waits
    assert limiter._flows.wait_queue.count(key or "") == before + count
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def used_up(store: Store, limit: LimitConfig | str) -> BaseLimiter:
    """Return a limiter whose keys ``None`` and ``"k"`` have nothing left."""
    limiter = BaseLimiter(limit, store, "n")
    for key in (None, "k"):
        while limiter.sync.acquire(key):
            pass
    return limiter


async def is_refused_at_once(
    limiter: BaseLimiter, timeout: float, cost: int = 1, key: str | None = None
) -> bool:
    """Whether a caller is refused before the event loop has anything else to do."""
    caller = asyncio.ensure_future(limiter.acquire(key, cost, timeout=timeout))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = caller.done() and caller.result() is False
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    return refused


@pytest.mark.parametrize(
    ("limit", "ahead", "hopeless", "possible"),
    [
        (LimitConfig(1 / HOUR, 5), 137, 137 * HOUR, 138.1 * HOUR),
        (LimitConfig(5, 5, HOUR, strategy=LimitStrategy.FIXED_WINDOW), 12, 2 * HOUR, 3.1 * HOUR),
        (LimitConfig(5, 5, HOUR, strategy=LimitStrategy.SLIDING_WINDOW), 12, 2 * HOUR, 3.1 * HOUR),
    ],
    ids=["token bucket", "fixed window", "sliding window"],
)
def test_acquire__many_waiters_ahead__is_refused_at_once_if_it_cannot_be_served_in_time(
    store: Store, limit: LimitConfig, ahead: int, hopeless: float, possible: float
) -> None:
    async def main() -> None:
        limiter = used_up(store, limit)
        async with waiting(limiter, ahead):
            assert await is_refused_at_once(limiter, hopeless)
            assert not await is_refused_at_once(limiter, possible)
            assert not await is_refused_at_once(limiter, 1.1 * HOUR, key="k")

    asyncio.run(main())


def test_acquire__waiters_of_a_high_cost_ahead__counts_their_units(store: Store) -> None:
    async def main() -> None:
        limiter = used_up(store, LimitConfig(1 / HOUR, 5))
        async with waiting(limiter, 2, cost=5):
            assert await is_refused_at_once(limiter, 10.5 * HOUR)
            assert not await is_refused_at_once(limiter, 11.1 * HOUR)
            assert await is_refused_at_once(limiter, 11.1 * HOUR, cost=2)

    asyncio.run(main())


def test_acquire__waiters_ahead_give_up__waits_again(store: Store) -> None:
    async def main() -> None:
        limiter = used_up(store, LimitConfig(1 / HOUR, 5))
        async with waiting(limiter, 1):
            async with waiting(limiter, 9):
                assert await is_refused_at_once(limiter, 3 * HOUR)
            assert not await is_refused_at_once(limiter, 3 * HOUR)

    asyncio.run(main())


def test_acquire__no_caller_has_tried_yet__waits_behind_them(store: Store) -> None:
    """The limit may still have a whole burst, which nobody in this process knows yet."""

    async def main() -> None:
        limiter = BaseLimiter(LimitConfig(1 / HOUR, 5), store, "n")
        queue = limiter._flows.wait_queue
        waiter = queue.join("")
        assert waiter is not None
        assert not await is_refused_at_once(limiter, 1)
        queue.leave("", waiter)

    asyncio.run(main())


@pytest.mark.parametrize("blocking", [False, True])
def test_acquire__waiters_ahead_and_time_enough__is_served_after_them(store: Store, blocking: bool) -> None:
    async def main() -> None:
        limiter = used_up(store, LimitConfig(100, 1))
        async with waiting(limiter, 3) as ahead:
            if blocking:
                assert await asyncio.to_thread(limiter.sync.acquire, timeout=60)
            else:
                assert await limiter.acquire(timeout=60)
            assert [task.done() for task in ahead] == [True] * 3

    asyncio.run(main())


def test_acquire__nobody_knows_when_the_waiters_ahead_are_served__waits_for_the_timeout(store: Store) -> None:
    limiter = BaseLimiter(LimitConfig(1 / HOUR, 5), store, "n")
    queue = limiter._flows.wait_queue
    waiter = queue.join("")
    assert waiter is not None
    assert limiter.sync.acquire(timeout=0.02) is False
    queue.leave("", waiter)
    assert limiter.sync.acquire(timeout=0.02) is True


def test_pace__calendar_window__is_unknown_because_its_length_varies() -> None:
    assert LimitConfig.coerce("10/month at 00:00 UTC").build_strategy().pace_us(100) == 0


def test_pace__queue_that_has_gone__is_not_recorded() -> None:
    queue = WaitQueue()
    queue.set_pace_from("k", 5)
    assert queue.earliest_us("k", 1, lambda units: units) == 0
