"""What worker processes do in the tests of the cache. The source is a file: each call adds a byte."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.breaker.jobs import Backend, hits
from tests.processes.jobs import send_result, wait_for_start
from tests.support import wait_until

from comporta import HealthCache

Q = {"q": "the same for all callers"}


def crowd(number: int, url: str, backend: str, *, callers: int, seconds: float) -> None:
    """Fetch the same key from many coroutines at once."""

    async def main() -> None:
        cache, source = HealthCache(url, state="memory://"), Backend(backend)

        async def load() -> list[str]:
            source.hit()
            await asyncio.sleep(seconds)  # sleeps: the source takes this long
            return ["answer"]

        wait_for_start()
        results = await asyncio.gather(*(cache.fetch(f"user{n}", Q, load) for n in range(callers)))
        send_result(sorted({str(result.value) for result in results}))
        await cache.aclose()

    asyncio.run(main())


def crowd_blocking(number: int, url: str, backend: str, *, callers: int, seconds: float) -> None:
    """Fetch the same key from many threads at once."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - this job only

    cache, source = HealthCache(url, state="memory://"), Backend(backend)

    def load() -> list[str]:
        source.hit()
        time.sleep(seconds)  # sleeps: the source takes this long
        return ["answer"]

    with ThreadPoolExecutor(callers) as pool:
        wait_for_start()
        futures = [pool.submit(cache.sync.fetch, f"user{n}", Q, load) for n in range(callers)]
        send_result(sorted({str(future.result().value) for future in futures}))
    cache.sync.close()


def hang_in_fetch(number: int, url: str, lease_seconds: float) -> None:
    """Start a fetch, report it, and never return."""

    def load() -> None:
        send_result("ready")
        threading.Event().wait()

    HealthCache(url, state="memory://", lease_seconds=lease_seconds).sync.fetch("ana", Q, load)


def fetch_once(number: int, url: str, lease_seconds: float) -> None:
    """Fetch once, and report when it was done."""
    cache = HealthCache(url, state="memory://", lease_seconds=lease_seconds)
    wait_for_start()
    result = cache.sync.fetch("bob", Q, lambda: ["second"])
    send_result([result.value, time.monotonic_ns()])


def fetch_from_a_failing(number: int, url: str, backend: str, times: int) -> None:
    """Fetch repeatedly from a source that fails."""
    cache, source = HealthCache(url, state="memory://"), Backend(backend)
    wait_for_start()
    errors = set()
    for _ in range(times):
        try:
            cache.sync.fetch(f"user{number}", Q, source.fail)
        except Exception as error:
            errors.add(type(error).__name__)
    send_result(sorted(errors))


def follow(number: int, url: str, state: str) -> None:
    """Hold a result in the local cache, and report the value of another worker that replaces it."""
    cache = HealthCache(url, state=state)
    before: dict[str, Any] = cache.sync.fetch("ana", Q, dict).value
    send_result("ready")
    sys.stdin.readline()
    wait_until(lambda: cache.sync.fetch("ana", Q, dict).value != before)
    send_result(cache.sync.fetch("ana", Q, dict).value)


JOBS: dict[str, Callable[..., Any]] = {
    "cache_crowd": crowd,
    "cache_crowd_blocking": crowd_blocking,
    "cache_hang": hang_in_fetch,
    "cache_fetch_once": fetch_once,
    "cache_fail": fetch_from_a_failing,
    "cache_follow": follow,
}

__all__ = ["JOBS", "hits"]
