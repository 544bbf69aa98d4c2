"""Jobs of processes that wait for a limit: with costs of different size, as batches, and interactively."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.processes.jobs import send_result, wait_for_start

from comporta import BaseLimiter, LimitConfig, LimitGroup


def group_of(limiter: BaseLimiter) -> LimitGroup:
    """Return a group of a limit and of one that never refuses."""
    wide = BaseLimiter(LimitConfig(1e6, 1_000_000), limiter.store, "tested.wide")
    return LimitGroup(limiter, wide)


def take_in_turns(
    url: str, limit: dict[str, Any], cost: int, threads: int, seconds: float, *, grouped: bool = False
) -> None:
    """Take again and again with several threads that wait; report when each wait began and ended.

    The times are those of the clock that all processes of this machine share.
    """
    limiter = BaseLimiter(LimitConfig(**limit), url, "tested")
    acquire = partial(limiter.sync.acquire, "k")
    if grouped:
        acquire = partial(group_of(limiter).sync.acquire, ["k", "k"])
    waits: list[tuple[float, float]] = []
    until = 0.0

    def take() -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            assert acquire(cost=cost, timeout=60)
            waits.append((began, time.monotonic()))

    limiter.sync.peek("other")  # connects
    wait_for_start()
    until = time.monotonic() + seconds
    running = [threading.Thread(target=take, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    send_result(waits)


def take_without_waiting(url: str, limit: dict[str, Any], how: str, seconds: float) -> None:
    """Take units as fast as possible without waiting; report how many units it got."""
    limiter = BaseLimiter(LimitConfig(**limit), url, "tested")
    group = group_of(limiter)
    calls: dict[str, Callable[[], object]] = {
        "acquire": lambda: limiter.sync.acquire("k"),
        "decide": lambda: limiter.sync.decide("k"),
        "acquire_up_to": lambda: limiter.sync.acquire_up_to("k", 5),
        "group": lambda: group.sync.acquire(["k", "k"]),
    }
    call, granted = calls[how], 0
    limiter.sync.peek("other")  # connects
    wait_for_start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        granted += int(bool(call()))
        time.sleep(0.001)
    send_result(granted)


def wait_as_batch(url: str, limit: dict[str, Any], callers: int, seconds: float) -> None:
    """Wait with many batch callers all the time; report how many units they got."""
    limiter = BaseLimiter(LimitConfig(**limit), url, "tested")
    granted = 0

    async def take() -> None:
        nonlocal granted
        while True:
            assert await limiter.acquire("k", timeout=None, priority="batch")
            granted += 1

    async def main() -> None:
        await limiter.peek("other")  # connects
        wait_for_start()
        tasks = [asyncio.create_task(take()) for _ in range(callers)]
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await limiter.aclose()

    asyncio.run(main())
    send_result(granted)


def call_at_times(url: str, limit: dict[str, Any], times: list[float], key: str) -> None:
    """Take a unit at each of some times, as an interactive caller; report how long each waited."""
    limiter = BaseLimiter(LimitConfig(**limit), url, "tested")

    async def take() -> float:
        began = time.monotonic()
        assert await limiter.acquire(key, timeout=60, priority="interactive")
        return time.monotonic() - began

    async def main() -> list[float]:
        await limiter.peek("other")  # connects
        wait_for_start()
        began, tasks = time.monotonic(), []
        for at in times:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            tasks.append(asyncio.create_task(take()))
        waits = await asyncio.gather(*tasks)
        await limiter.aclose()
        return waits

    send_result(asyncio.run(main()))


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job for job in (take_in_turns, take_without_waiting, wait_as_batch, call_at_times)
}
