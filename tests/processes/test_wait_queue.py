"""The wait queue in real time: waiters are served in order of arrival and never exceed their timeout."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from tests.processes.conftest import KINDS, Servers
from tests.processes.fleet import flush_server, new_state_name, open_state, remove_shared_state, shared_url
from tests.support import assert_within, within

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.stores.memory import MemoryStore

FAST = LimitConfig(50, 1)
HOURLY = LimitConfig(1 / 3600, 1)
MARGIN = 0.5
"""How late a busy machine may wake a waiter, in seconds."""

LimiterFactory = Callable[[LimitConfig], BaseLimiter]


@contextmanager
def limiters(kind: str, servers: Servers) -> Iterator[LimiterFactory]:
    if kind == "memory":
        yield lambda config: BaseLimiter(config, MemoryStore(), "tested")
        return
    name = new_state_name()
    if kind != "shared":
        flush_server(servers.get(kind).url)
    with open_state(shared_url(name) if kind == "shared" else servers.get(kind).url) as store:
        yield lambda config: BaseLimiter(config, store, "tested")
    if kind == "shared":
        remove_shared_state(name)


@pytest.fixture(params=["memory", "shared", *KINDS])
def limiter_for(request: pytest.FixtureRequest, servers: Servers) -> Iterator[LimiterFactory]:
    with limiters(request.param, servers) as factory:
        yield factory


def run_with(limiter: BaseLimiter, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        try:
            async with asyncio.timeout(60):
                return await work()
        finally:
            await limiter.aclose()

    return asyncio.run(main())


def exhaust(limiter: BaseLimiter) -> BaseLimiter:
    assert limiter.sync.acquire("k")
    return limiter


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def has_more(served: list[int], count: int) -> bool:
    return len(served) > count


def waiter_count(limiter: BaseLimiter) -> int:
    return len(limiter._flows.wait_queue.waiters_by_key.get("k", ()))


async def wait_for_waiters(limiter: BaseLimiter, count: int) -> None:
    await asyncio.to_thread(until, lambda: waiter_count(limiter) >= count)


# order of arrival -------------------------------------------------------------------------------------------


def test_coroutines__waiting__are_served_in_order_of_arrival(limiter_for: LimiterFactory) -> None:
    limiter = limiter_for(FAST)

    async def work() -> list[int]:
        served: list[int] = []

        async def wait(number: int) -> None:
            assert await limiter.acquire("k", timeout=20)
            served.append(number)

        await asyncio.gather(*(wait(number) for number in range(15)))
        return served

    assert run_with(limiter, work) == list(range(15))


def test_threads__waiting__are_served_in_order_of_arrival(limiter_for: LimiterFactory) -> None:
    limiter = exhaust(limiter_for(HOURLY))
    served: list[int] = []

    def wait(number: int) -> None:
        assert limiter.sync.acquire("k", timeout=None)
        served.append(number)

    with ThreadPoolExecutor(8) as threads:
        waits = []
        for number in range(8):
            waits.append(threads.submit(wait, number))
            until(lambda: waiter_count(limiter) == len(waits))
        for number in range(8):
            assert served == list(range(number))
            limiter.sync.release("k")
            until(partial(has_more, served, number))
        for done in waits:
            done.result(60)
    assert served == list(range(8))


def test_threads_and_coroutines__waiting__share_one_queue(limiter_for: LimiterFactory) -> None:
    limiter = exhaust(limiter_for(HOURLY))
    served: list[int] = []

    def wait(number: int) -> None:
        assert limiter.sync.acquire("k", timeout=None)
        served.append(number)

    async def wait_async(number: int) -> None:
        assert await limiter.acquire("k", timeout=None)
        served.append(number)

    async def work() -> None:
        waits: list[asyncio.Future[None]] = []
        for number in range(8):
            turn = wait_async(number) if number % 2 else asyncio.to_thread(wait, number)
            waits.append(asyncio.ensure_future(turn))
            await wait_for_waiters(limiter, number + 1)
        for number in range(8):
            await (limiter.release("k") if number % 3 else asyncio.to_thread(limiter.sync.release, "k"))
            await asyncio.to_thread(until, partial(has_more, served, number))
        await asyncio.gather(*waits)

    run_with(limiter, work)
    assert served == list(range(8))


def test_caller__without_timeout__does_not_overtake_waiters(limiter_for: LimiterFactory) -> None:
    limiter = limiter_for(LimitConfig(0.001, 2))
    assert limiter.sync.acquire("k")

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", cost=2, timeout=None))
        await wait_for_waiters(limiter, 1)
        assert not await limiter.acquire("k")
        assert not await asyncio.to_thread(limiter.sync.acquire, "k")
        assert await limiter.acquire("another key")
        await limiter.release("k")
        assert await first

    run_with(limiter, work)


def test_first_waiter__cancelled__next_one_is_served(limiter_for: LimiterFactory) -> None:
    limiter = limiter_for(LimitConfig(0.001, 2))
    assert limiter.sync.acquire("k")

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", cost=2, timeout=None))
        await wait_for_waiters(limiter, 1)
        second = asyncio.create_task(limiter.acquire("k", timeout=None))
        await wait_for_waiters(limiter, 2)
        first.cancel()
        assert await second
        assert first.cancelled()
        assert (await limiter.peek("k")).remaining == 0

    run_with(limiter, work)


def test_first_waiter__timed_out__next_one_is_served(limiter_for: LimiterFactory) -> None:
    """It waits behind a waiter that leaves only when cancelled, so both leave the queue in turn.

    A store on this machine knows that it cannot be served in time, and refuses it at once.
    """
    limiter = limiter_for(LimitConfig(0.001, 2))
    assert limiter.sync.acquire("k")

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", cost=2, timeout=None))
        await wait_for_waiters(limiter, 1)
        second = asyncio.create_task(limiter.acquire("k", cost=2, timeout=0.1))
        third = asyncio.create_task(limiter.acquire("k", timeout=None))
        await wait_for_waiters(limiter, 2)
        assert not await second
        first.cancel()
        assert await third

    run_with(limiter, work)


# timeouts ---------------------------------------------------------------------------------------------------


def test_waiter__cannot_be_served_in_time__is_refused_immediately(limiter_for: LimiterFactory) -> None:
    limiter = exhaust(limiter_for(HOURLY))

    async def work() -> None:
        with within(2 * MARGIN):
            assert not await limiter.acquire("k", timeout=10)
            assert not await asyncio.to_thread(limiter.sync.acquire, "k", timeout=10)
        assert not limiter._flows.wait_queue.waiters_by_key

    run_with(limiter, work)


def test_waiters__behind_one_without_timeout__are_refused_by_their_timeout(
    limiter_for: LimiterFactory,
) -> None:
    limiter = exhaust(limiter_for(HOURLY))

    def in_thread(timeout: float) -> float:
        began = time.monotonic()
        assert not limiter.sync.acquire("k", timeout=timeout)
        return time.monotonic() - began - timeout

    async def in_loop(timeout: float) -> float:
        began = time.monotonic()
        assert not await limiter.acquire("k", timeout=timeout)
        return time.monotonic() - began - timeout

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", timeout=None))
        await wait_for_waiters(limiter, 1)
        timeouts = (0.3, 0.1, 0.2)
        waits = [in_loop(timeout) for timeout in timeouts]
        waits += [asyncio.to_thread(in_thread, timeout) for timeout in timeouts]
        for late in await asyncio.gather(*waits):
            assert_within(late, MARGIN, "the delay after the timeout")
        assert not first.done()
        first.cancel()

    run_with(limiter, work)


def test_waiters__too_many_for_their_timeout__are_served_or_refused_in_time(
    limiter_for: LimiterFactory,
) -> None:
    limiter = limiter_for(FAST)

    async def wait() -> tuple[bool, float]:
        began = time.monotonic()
        granted = await limiter.acquire("k", timeout=0.25)
        return granted, time.monotonic() - began

    async def work() -> list[tuple[bool, float]]:
        return await asyncio.gather(*(wait() for _ in range(30)))

    results = run_with(limiter, work)
    assert_within(max(elapsed for _, elapsed in results), 0.25 + MARGIN)
    assert 2 <= sum(granted for granted, _ in results) <= 1 + 50 * (0.25 + MARGIN)


def test_waiter__no_timeout__waits_until_served(limiter_for: LimiterFactory) -> None:
    limiter = limiter_for(LimitConfig(5, 1))

    async def work() -> None:
        began = time.monotonic()
        assert await limiter.acquire("k", timeout=None)
        assert await limiter.acquire("k", timeout=None)
        assert await asyncio.to_thread(limiter.sync.acquire, "k", timeout=None)
        assert time.monotonic() - began >= 0.399

    run_with(limiter, work)


# wake-ups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["release", "reset"])
def test_waiter__capacity_returned__is_woken_immediately(limiter_for: LimiterFactory, method: str) -> None:
    limiter = exhaust(limiter_for(HOURLY))

    async def work() -> None:
        for api in (limiter, limiter.sync):
            waiting = asyncio.create_task(limiter.acquire("k", timeout=None))
            await wait_for_waiters(limiter, 1)
            began = time.monotonic()
            done = getattr(api, method)("k")
            if done is not None:
                await done
            assert await waiting
            assert_within(time.monotonic() - began, MARGIN)

    run_with(limiter, work)


def test_waiter__limit_raised__is_served_soon(limiter_for: LimiterFactory) -> None:
    limiter = exhaust(limiter_for(HOURLY))

    async def work() -> None:
        waiting = asyncio.create_task(limiter.acquire("k", timeout=None))
        await wait_for_waiters(limiter, 1)
        began = time.monotonic()
        await limiter.set_limit("1000/s")
        assert await waiting
        assert_within(time.monotonic() - began, 1 + MARGIN)

    run_with(limiter, work)


# queues and groups ------------------------------------------------------------------------------------------


def test_leaky_bucket__waiters__are_evenly_spaced_and_bounded(
    limiter_for: LimiterFactory,
) -> None:
    limiter = limiter_for(LimitConfig(25, 4, strategy=LimitStrategy.LEAKY_BUCKET))

    async def work() -> tuple[list[bool], list[float]]:
        began, passed = time.monotonic(), []

        async def wait() -> bool:
            granted = await limiter.acquire("k", timeout=5)
            if granted:
                passed.append(time.monotonic() - began)
            return granted

        return await asyncio.gather(*(wait() for _ in range(8))), passed

    results, passed = run_with(limiter, work)
    assert results == [True] * 5 + [False] * 3  # one passes, four wait
    for number, seconds in enumerate(passed):
        assert number * 0.04 - 0.001 <= seconds
        assert_within(seconds, number * 0.04 + MARGIN)


def test_group__waiting__acquires_all_or_none_in_order_of_arrival(
    limiter_for: LimiterFactory,
) -> None:
    fast = limiter_for(FAST)
    slow = BaseLimiter(LimitConfig(25, 1), fast.store, "slow")
    group = LimitGroup(fast, slow)

    async def work() -> list[int]:
        served: list[int] = []

        async def wait(number: int) -> None:
            assert await group.acquire(["k", "k"], timeout=20)
            served.append(number)

        began = time.monotonic()
        await asyncio.gather(*(wait(number) for number in range(6)))
        assert time.monotonic() - began >= 5 / 25 - 0.001
        return served

    assert run_with(fast, work) == list(range(6))
