"""Jobs of processes that wait for a limit: with costs of different size, as batches, and interactively."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.processes.jobs import send_result, wait_for_start

from comporta import BaseLimiter, LimitConfig


def take_in_turns(url: str, limit: dict[str, Any], cost: int, threads: int, seconds: float) -> None:
    """Take again and again with several threads that wait; report when each wait began and ended.

    The times are those of the clock that all processes of this machine share.
    """
    limiter = BaseLimiter(LimitConfig(**limit), url, "tested")
    waits: list[tuple[float, float]] = []
    until = 0.0

    def take() -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            assert limiter.sync.acquire("k", cost=cost, timeout=60)
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
    job.__name__: job for job in (take_in_turns, wait_as_batch, call_at_times)
}
