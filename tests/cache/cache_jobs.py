"""What worker processes do in the tests of caches. The source is a file: each call adds a byte."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.breaker.jobs import Backend, hits
from tests.processes.jobs import ready, say

from comporta import HealthCache

Q = {"q": "what everybody asks"}


def crowd(number: int, url: str, backend: str, *, callers: int, seconds: float) -> None:
    """Ask the same from many coroutines at once."""

    async def main() -> None:
        cache, source = HealthCache(url, state="memory://"), Backend(backend)

        async def load() -> list[str]:
            source.hit()
            await asyncio.sleep(seconds)
            return ["answer"]

        ready()
        found = await asyncio.gather(*(cache.fetch(f"user{n}", Q, load) for n in range(callers)))
        say(sorted({str(each.value) for each in found}))
        await cache.aclose()

    asyncio.run(main())


def crowd_blocking(number: int, url: str, backend: str, *, callers: int, seconds: float) -> None:
    """Do the same from threads."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - this job only

    cache, source = HealthCache(url, state="memory://"), Backend(backend)

    def load() -> list[str]:
        source.hit()
        time.sleep(seconds)
        return ["answer"]

    with ThreadPoolExecutor(callers) as crew:
        ready()
        found = [crew.submit(cache.sync.fetch, f"user{n}", Q, load) for n in range(callers)]
        say(sorted({str(each.result().value) for each in found}))
    cache.sync.close()


def hang_in_fetch(number: int, url: str, lease_seconds: float) -> None:
    """Begin to fetch, say so, and never come back."""

    def load() -> None:
        say("ready")
        time.sleep(3600)

    HealthCache(url, state="memory://", lease_seconds=lease_seconds).sync.fetch("ana", Q, load)


def fetch_once(number: int, url: str, lease_seconds: float) -> None:
    """Fetch, and tell when that was done."""
    cache = HealthCache(url, state="memory://", lease_seconds=lease_seconds)
    ready()
    found = cache.sync.fetch("bob", Q, lambda: ["second"])
    say([found.value, time.monotonic_ns()])


def fetch_from_a_failing(number: int, url: str, backend: str, times: int) -> None:
    """Ask again and again for what fails."""
    cache, source = HealthCache(url, state="memory://"), Backend(backend)
    ready()
    errors = set()
    for _ in range(times):
        try:
            cache.sync.fetch(f"user{number}", Q, source.fail)
        except Exception as error:
            errors.add(type(error).__name__)
    say(sorted(errors))


def follow(number: int, url: str, state: str) -> None:
    """Keep an answer in memory, and say when another worker's is seen in its place."""
    cache = HealthCache(url, state=state)
    before = cache.sync.fetch("ana", Q, dict).value
    say("ready")
    sys.stdin.readline()
    while cache.sync.fetch("ana", Q, dict).value == before:
        time.sleep(0.01)
    say(cache.sync.fetch("ana", Q, dict).value)


JOBS: dict[str, Callable[..., Any]] = {
    "cache_crowd": crowd,
    "cache_crowd_blocking": crowd_blocking,
    "cache_hang": hang_in_fetch,
    "cache_fetch_once": fetch_once,
    "cache_fail": fetch_from_a_failing,
    "cache_follow": follow,
}

__all__ = ["JOBS", "hits"]
