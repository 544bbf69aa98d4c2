"""Waiting for a limit, in real time: first come first served, and nobody sleeps past the timeout."""

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
from tests.processes.fleet import flushed, new_name, opened, remove, shared_url
from tests.support import hold_to, within

from comporta import BaseLimiter, LimitConfig, LimitGroup, LimitStrategy
from comporta.stores.memory import MemoryStore

FAST = LimitConfig(50, 1)
HOURLY = LimitConfig(1 / 3600, 1)
MARGIN = 0.5
"""How late a busy machine may wake somebody."""

MakesLimiter = Callable[[LimitConfig], BaseLimiter]


@contextmanager
def limiters(kind: str, servers: Servers) -> Iterator[MakesLimiter]:
    if kind == "memory":
        yield lambda config: BaseLimiter(config, MemoryStore(), "tested")
        return
    name = new_name()
    if kind != "shared":
        flushed(servers.get(kind).url)
    with opened(shared_url(name) if kind == "shared" else servers.get(kind).url) as store:
        yield lambda config: BaseLimiter(config, store, "tested")
    if kind == "shared":
        remove(name)


@pytest.fixture(params=["memory", "shared", *KINDS])
def limiter_for(request: pytest.FixtureRequest, servers: Servers) -> Iterator[MakesLimiter]:
    with limiters(request.param, servers) as made:
        yield made


def awaited(limiter: BaseLimiter, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        try:
            async with asyncio.timeout(60):
                return await work()
        finally:
            await limiter.aclose()

    return asyncio.run(main())


def exhausted(limiter: BaseLimiter) -> BaseLimiter:
    assert limiter.sync.acquire("k")
    return limiter


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def holds_more(served: list[int], count: int) -> bool:
    return len(served) > count


def in_line(limiter: BaseLimiter) -> int:
    return len(limiter.verbs.lines.by_key.get("k", ()))


async def lined_up(limiter: BaseLimiter, count: int) -> None:
    await asyncio.to_thread(until, lambda: in_line(limiter) >= count)


# in the order in which they came ----------------------------------------------------------------------------


def test_coroutines__waiting__are_served_in_the_order_in_which_they_came(limiter_for: MakesLimiter) -> None:
    limiter = limiter_for(FAST)

    async def work() -> list[int]:
        served: list[int] = []

        async def wait(number: int) -> None:
            assert await limiter.acquire("k", timeout=20)
            served.append(number)

        await asyncio.gather(*(wait(number) for number in range(15)))
        return served

    assert awaited(limiter, work) == list(range(15))


def test_threads__waiting__are_served_in_the_order_in_which_they_came(limiter_for: MakesLimiter) -> None:
    limiter = exhausted(limiter_for(HOURLY))
    served: list[int] = []

    def wait(number: int) -> None:
        assert limiter.sync.acquire("k", timeout=None)
        served.append(number)

    with ThreadPoolExecutor(8) as threads:
        waits = []
        for number in range(8):
            waits.append(threads.submit(wait, number))
            until(lambda: in_line(limiter) == len(waits))
        for number in range(8):
            assert served == list(range(number))
            limiter.sync.release("k")
            until(partial(holds_more, served, number))
        for done in waits:
            done.result(60)
    assert served == list(range(8))


def test_threads_and_coroutines__waiting_together__stand_in_one_line(limiter_for: MakesLimiter) -> None:
    limiter = exhausted(limiter_for(HOURLY))
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
            await lined_up(limiter, number + 1)
        for number in range(8):
            await (limiter.release("k") if number % 3 else asyncio.to_thread(limiter.sync.release, "k"))
            await asyncio.to_thread(until, partial(holds_more, served, number))
        await asyncio.gather(*waits)

    awaited(limiter, work)
    assert served == list(range(8))


def test_caller__who_will_not_wait__does_not_overtake_those_who_do(limiter_for: MakesLimiter) -> None:
    limiter = limiter_for(LimitConfig(0.001, 2))
    assert limiter.sync.acquire("k")

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", cost=2, timeout=None))
        await lined_up(limiter, 1)
        assert not await limiter.acquire("k")
        assert not await asyncio.to_thread(limiter.sync.acquire, "k")
        assert await limiter.acquire("another key")
        await limiter.release("k")
        assert await first

    awaited(limiter, work)


def test_first_of_the_line__cancelled__lets_the_next_one_go(limiter_for: MakesLimiter) -> None:
    limiter = limiter_for(LimitConfig(0.001, 2))
    assert limiter.sync.acquire("k")

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", cost=2, timeout=None))
        await lined_up(limiter, 1)
        second = asyncio.create_task(limiter.acquire("k", timeout=None))
        await lined_up(limiter, 2)
        first.cancel()
        assert await second
        assert first.cancelled()
        assert (await limiter.peek("k")).remaining == 0

    awaited(limiter, work)


def test_first_of_the_line__timed_out__lets_the_next_one_go(limiter_for: MakesLimiter) -> None:
    """It waits behind one who goes away only by being cancelled, so both leave the line in turn."""
    limiter = limiter_for(LimitConfig(0.001, 2))
    assert limiter.sync.acquire("k")

    async def work() -> None:
        first = asyncio.create_task(limiter.acquire("k", cost=2, timeout=None))
        await lined_up(limiter, 1)
        second = asyncio.create_task(limiter.acquire("k", cost=2, timeout=0.1))
        third = asyncio.create_task(limiter.acquire("k", timeout=None))
        await lined_up(limiter, 3)
        assert not await second
        first.cancel()
        assert await third

    awaited(limiter, work)


# no longer than they said -----------------------------------------------------------------------------------


def test_waiter__who_cannot_be_served_in_time__is_refused_at_once(limiter_for: MakesLimiter) -> None:
    limiter = exhausted(limiter_for(HOURLY))

    async def work() -> None:
        with within(2 * MARGIN):
            assert not await limiter.acquire("k", timeout=10)
            assert not await asyncio.to_thread(limiter.sync.acquire, "k", timeout=10)
        assert not limiter.verbs.lines.by_key

    awaited(limiter, work)


def test_waiters__behind_one_who_waits_for_ever__go_when_their_time_is_over(
    limiter_for: MakesLimiter,
) -> None:
    limiter = exhausted(limiter_for(HOURLY))

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
        await lined_up(limiter, 1)
        timeouts = (0.3, 0.1, 0.2)
        waits = [in_loop(timeout) for timeout in timeouts]
        waits += [asyncio.to_thread(in_thread, timeout) for timeout in timeouts]
        for late in await asyncio.gather(*waits):
            assert late >= -0.001
            hold_to(late, MARGIN, "being late")
        assert not first.done()
        first.cancel()

    awaited(limiter, work)


def test_waiters__more_than_can_be_served_in_time__are_served_or_refused_by_then(
    limiter_for: MakesLimiter,
) -> None:
    limiter = limiter_for(FAST)

    async def wait() -> tuple[bool, float]:
        began = time.monotonic()
        granted = await limiter.acquire("k", timeout=0.25)
        return granted, time.monotonic() - began

    async def work() -> list[tuple[bool, float]]:
        return await asyncio.gather(*(wait() for _ in range(30)))

    answers = awaited(limiter, work)
    hold_to(max(elapsed for _, elapsed in answers), 0.25 + MARGIN)
    assert 2 <= sum(granted for granted, _ in answers) <= 1 + 50 * (0.25 + MARGIN)


def test_waiter__without_a_bound__waits_until_it_is_served(limiter_for: MakesLimiter) -> None:
    limiter = limiter_for(LimitConfig(5, 1))

    async def work() -> None:
        began = time.monotonic()
        assert await limiter.acquire("k", timeout=None)
        assert await limiter.acquire("k", timeout=None)
        assert await asyncio.to_thread(limiter.sync.acquire, "k", timeout=None)
        assert time.monotonic() - began >= 0.399

    awaited(limiter, work)


# woken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["release", "reset"])
def test_waiter__when_there_is_room_again__is_woken_at_once(limiter_for: MakesLimiter, verb: str) -> None:
    limiter = exhausted(limiter_for(HOURLY))

    async def work() -> None:
        for face in (limiter, limiter.sync):
            waiting = asyncio.create_task(limiter.acquire("k", timeout=None))
            await lined_up(limiter, 1)
            began = time.monotonic()
            done = getattr(face, verb)("k")
            if done is not None:
                await done
            assert await waiting
            hold_to(time.monotonic() - began, MARGIN)

    awaited(limiter, work)


def test_waiter__when_the_limit_is_raised__is_served_within_a_second_or_so(limiter_for: MakesLimiter) -> None:
    limiter = exhausted(limiter_for(HOURLY))

    async def work() -> None:
        waiting = asyncio.create_task(limiter.acquire("k", timeout=None))
        await lined_up(limiter, 1)
        began = time.monotonic()
        await limiter.change("1000/s")
        assert await waiting
        hold_to(time.monotonic() - began, 1 + MARGIN)

    awaited(limiter, work)


# queues and groups ------------------------------------------------------------------------------------------


def test_leaky_bucket__waiters__pass_evenly_spaced_and_the_queue_is_bounded(
    limiter_for: MakesLimiter,
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

    answers, passed = awaited(limiter, work)
    assert answers == [True] * 5 + [False] * 3  # one passes, four wait
    for number, seconds in enumerate(passed):
        assert number * 0.04 - 0.001 <= seconds
        hold_to(seconds, number * 0.04 + MARGIN)


def test_group__waiting__takes_from_all_limits_or_none_in_the_order_of_arrival(
    limiter_for: MakesLimiter,
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

    assert awaited(fast, work) == list(range(6))
