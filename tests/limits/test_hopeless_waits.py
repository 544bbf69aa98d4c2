"""Callers that cannot be served within their time-out do not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support import memory_store, shared_store

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.clock import MONOTONIC
from comporta.flow import Flow, Perform, run_async
from comporta.limits.cost import Cost
from comporta.limits.wait_queue import WaitQueue, wait_flow
from comporta.stores.base import Store

HOUR = 3600.0
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


@pytest.fixture(params=[memory_store, shared_store])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    with request.param() as opened:
        yield opened


@asynccontextmanager
async def start_waiters(limiter: BaseLimiter, count: int, cost: int = 1, key: str | None = None) -> Any:
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
        async with start_waiters(limiter, ahead):
            assert await is_refused_at_once(limiter, hopeless)
            assert not await is_refused_at_once(limiter, possible)
            assert not await is_refused_at_once(limiter, 1.1 * HOUR, key="k")

    asyncio.run(main())


def test_acquire__waiters_of_a_high_cost_ahead__counts_their_units(store: Store) -> None:
    async def main() -> None:
        limiter = used_up(store, LimitConfig(1 / HOUR, 5))
        async with start_waiters(limiter, 2, cost=5):
            assert await is_refused_at_once(limiter, 10.5 * HOUR)
            assert not await is_refused_at_once(limiter, 11.1 * HOUR)
            assert await is_refused_at_once(limiter, 11.1 * HOUR, cost=2)

    asyncio.run(main())


def test_acquire__waiters_ahead_give_up__waits_again(store: Store) -> None:
    async def main() -> None:
        limiter = used_up(store, LimitConfig(1 / HOUR, 5))
        async with start_waiters(limiter, 1):
            async with start_waiters(limiter, 9):
                assert await is_refused_at_once(limiter, 3 * HOUR)
            assert not await is_refused_at_once(limiter, 3 * HOUR)

    asyncio.run(main())


def test_acquire__no_caller_has_tried_yet__waits_behind_them(store: Store) -> None:
    """The limit may still have a whole burst, which no caller in this process knows of yet."""

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
        limiter = used_up(store, LimitConfig(10, 1))
        async with start_waiters(limiter, 3) as ahead:
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


def test_pace__calendar_window__counts_windows_of_the_least_length() -> None:
    month = LimitConfig.coerce("10/month at 00:00 UTC").build_strategy()
    assert [month.pace_us(units) // DAY_US for units in (10, 11, 100)] == [0, 27, 9 * 27]


def test_pace__queue_that_has_gone__is_not_recorded() -> None:
    queue = WaitQueue()
    queue.set_pace("k", lambda units: units)
    assert queue.earliest_us("k", 1) == 0


def test_acquire__calendar_window__is_refused_at_once_if_the_window_ends_too_late(store: Store) -> None:
    async def main() -> None:
        limiter = used_up(store, "5/month at 00:00 UTC")
        async with start_waiters(limiter, 5):
            assert await is_refused_at_once(limiter, 27 * 24 * HOUR)
            assert not await is_refused_at_once(limiter, 63 * 24 * HOUR)

    asyncio.run(main())


# callers that joined before the first of them had its reply ----------------------------------------------


class SlowLimit:
    """A limit on a distant server: its replies, each a wait in µs, come when the test says so."""

    def __init__(self) -> None:
        self.queue = WaitQueue()
        self.replies: asyncio.Queue[int] = asyncio.Queue()

    def acquire(self, timeout: float | None) -> asyncio.Task[bool]:
        def pace_after(now_us: int, wait_us: int) -> Callable[[int], int]:
            return lambda units: now_us + wait_us + (units - 1) * HOUR_US

        flow = wait_flow(
            *(self.queue, self._try_flow, MONOTONIC, "k", timeout),
            jitter_us=lambda: 0,
            pace_after=pace_after,
        )
        return asyncio.ensure_future(run_async(flow))

    def _try_flow(self) -> Flow[int]:
        wait_us: int = yield Perform(lambda: 0, self.replies.get)
        return wait_us


def test_acquire__joined_before_the_first_reply__is_refused_when_that_says_it_is_too_late() -> None:
    async def main() -> None:
        limit = SlowLimit()
        first, late, patient, behind = (
            limit.acquire(timeout) for timeout in (None, 1.5 * HOUR, None, 2.5 * HOUR)
        )
        await asyncio.sleep(0)
        assert limit.queue.count("k") == 4
        limit.replies.put_nowait(HOUR_US)
        assert [await late, await behind] == [False, False]
        assert limit.queue.count("k") == 2
        limit.queue.wake_first("k")
        limit.replies.put_nowait(0)
        assert await first
        limit.replies.put_nowait(0)
        assert await patient

    asyncio.run(main())


def test_acquire__too_late_but_first_meanwhile__tries(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        limit = SlowLimit()
        first, late = limit.acquire(1.5 * HOUR), limit.acquire(1.5 * HOUR)
        await asyncio.sleep(0)
        limit.replies.put_nowait(HOUR_US)
        limit.replies.put_nowait(0)
        await asyncio.sleep(0)  # the first has its reply, and the other one learns of it
        first.cancel()
        assert await late

    asyncio.run(main())


# groups --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def waiting_for_group(group: LimitGroup, count: int, cost: Cost = 1) -> Any:
    tasks = [asyncio.create_task(group.acquire("k", cost, timeout=None)) for _ in range(count)]
    await asyncio.sleep(0)
    assert group._flows.wait_queue.count("k\0k") == count
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def is_group_refused_at_once(group: LimitGroup, timeout: float, cost: Cost = 1) -> bool:
    caller = asyncio.ensure_future(group.acquire("k", cost, timeout=timeout))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    refused = caller.done() and caller.result() is False
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    return refused


def test_group__waiters_ahead__is_refused_at_once_if_it_cannot_be_served_in_time(store: Store) -> None:
    async def main() -> None:
        group = LimitGroup(limit={"requests": "1/hour", "tokens": "1000000/hour"}, state=store)
        assert await group.acquire("k")
        async with waiting_for_group(group, 3, {"tokens": 10}):
            assert await is_group_refused_at_once(group, 3.5 * HOUR)
            assert not await is_group_refused_at_once(group, 4.1 * HOUR)

    asyncio.run(main())


def test_group__waiters_that_want_little_of_the_scarce_limit__counts_each_limit_alone(store: Store) -> None:
    """The other limit has refused no caller yet, so it may still have room for all that wait."""

    async def main() -> None:
        group = LimitGroup(limit={"requests": "5/day", "tokens": "100/hour"}, state=store)
        assert await group.acquire("k", {"requests": 0, "tokens": 100})
        async with waiting_for_group(group, 2, {"requests": 1, "tokens": 50}):
            assert await is_group_refused_at_once(group, 1.05 * HOUR, {"requests": 1, "tokens": 50})
            assert not await is_group_refused_at_once(group, 1.6 * HOUR, {"requests": 1, "tokens": 50})

    asyncio.run(main())
