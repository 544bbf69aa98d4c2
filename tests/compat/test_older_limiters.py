"""The older interfaces, compared with the old code where that was right."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support import command, wait_until_async

from comporta import FixedWindowLimiter, TokenBucketLimiter
from comporta.compat.limiters import LIMITERS_MAX, RateLimiter, TokenBucket
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, Server


def run_all(*calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    async def run() -> list[Any]:
        return [await call() for call in calls]

    return asyncio.run(run())


def test_token_bucket__full__grants_its_capacity_and_refills_at_the_rate() -> None:
    clock = ManualClock()
    bucket = TokenBucket(10.0, 3, state=MemoryStore(clock))
    assert run_all(*[bucket.acquire] * 5) == [True, True, True, False, False]
    clock.advance(0.1)
    assert run_all(*[bucket.acquire] * 2) == [True, False]


def test_token_bucket__called_while_empty__gains_nothing() -> None:
    """The old bucket added the time since the last grant again at each refusal."""
    clock = ManualClock()
    bucket = TokenBucket(1.0, 1, state=MemoryStore(clock))
    granted = 0
    for _ in range(100):
        granted += sum(run_all(bucket.acquire))
        clock.advance(0.1)
    assert granted == 10


def test_token_bucket__attributes__are_readable() -> None:
    clock = ManualClock()
    bucket = TokenBucket(rate=3.0, capacity=10, state=MemoryStore(clock))
    assert (bucket.rate, bucket.capacity, bucket.tokens) == (3.0, 10, 10)
    run_all(*[bucket.acquire] * 2)
    assert bucket.tokens == 8
    clock.advance(0.1)
    assert bucket.tokens == pytest.approx(8.3, abs=1e-5)


def test_token_bucket__two_buckets__share_only_with_the_same_state_and_name() -> None:
    first, second = TokenBucket(0.1, 1), TokenBucket(0.1, 1)
    assert run_all(first.acquire, second.acquire) == [True, True]
    shared = [TokenBucket(0.1, 1, state="memory://legacy-shared", name="one") for _ in range(2)]
    assert run_all(shared[0].acquire, shared[1].acquire) == [True, False]


def test_token_bucket__migrated_call_site__takes_from_the_same_bucket() -> None:
    bucket = TokenBucket(0.1, 2)
    assert isinstance(bucket.limiter, TokenBucketLimiter)
    assert run_all(bucket.acquire, bucket.limiter.acquire, bucket.acquire) == [True, True, False]


def test_token_bucket__invalid_numbers__are_refused() -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        TokenBucket(0, 1)
    with pytest.raises(ValueError, match="capacity must be 1 to"):
        TokenBucket(1, 0)


class OldRateLimiter:
    """The old counter, unchanged, on a redis-py client."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import Redis  # noqa: PLC0415 - pulls in the event loop

        self._redis = Redis.from_url(url)

    async def check_limit(self, key: str, limit: int, window: int) -> bool:
        current = await self._redis.incr(key)
        if current == 1:
            await self._redis.expire(key, window)
        return bool(current <= limit)

    async def aclose(self) -> None:
        await self._redis.aclose()


@pytest.mark.parametrize("kind", [OldRateLimiter, RateLimiter])
def test_check_limit__old_and_new__return_the_same(
    kind: type[OldRateLimiter] | type[RateLimiter], server: Server
) -> None:
    command(server, "FLUSHALL")

    async def use() -> None:
        limiter = kind(server.url + ("?timeout=5" if kind is RateLimiter else ""))
        try:
            assert [await limiter.check_limit("a", 3, 1) for _ in range(5)] == [True] * 3 + [False] * 2
            assert await limiter.check_limit(key="b", limit=1, window=1)
            assert not await limiter.check_limit("c", 0, 1)
            assert not await limiter.check_limit("c", -1, 1)
            await wait_until_async(lambda: limiter.check_limit("a", 3, 1))  # the window starts with a call
        finally:
            await limiter.aclose()

    asyncio.run(use())


def test_check_limit__two_processes_of_a_fleet__share_the_count(valkey: Server) -> None:
    async def use() -> list[bool]:
        limiter = RateLimiter(valkey.url + "?timeout=5")
        try:
            return [await limiter.check_limit("legacy-fleet", 3, 600) for _ in range(2)]
        finally:
            await limiter.aclose()

    url = valkey.url + "?timeout=5"
    code = (
        "import asyncio\n"
        "from comporta.compat.limiters import RateLimiter\n"
        "async def use():\n"
        f"    limiter = RateLimiter({url!r})\n"
        "    print([await limiter.check_limit('legacy-fleet', 3, 600) for _ in range(2)])\n"
        "    await limiter.aclose()\n"
        "asyncio.run(use())\n"
    )
    command(valkey, "FLUSHALL")
    assert asyncio.run(use()) == [True, True]
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == "[True, False]\n"


def test_check_limit__migrated_call_site__shares_the_count() -> None:
    url = "memory://legacy-moving"
    old, new = RateLimiter(url), FixedWindowLimiter("3/60s", url)

    async def use() -> list[bool]:
        return [
            await old.check_limit("a", 3, 60),
            await new.acquire("a"),
            await old.limiter(3, 60).acquire("a"),
            await old.check_limit("a", 3, 60),
            await new.acquire("a"),
        ]

    assert asyncio.run(use()) == [True, True, True, False, False]


def test_check_limit__more_pairs_than_are_cached__loses_no_count() -> None:
    limiter = RateLimiter("memory://")

    async def use() -> list[bool]:
        first = [await limiter.check_limit("a", 1, 600)]
        for window in range(1, 2 * LIMITERS_MAX):
            await limiter.check_limit("a", 1, window)
        return [*first, await limiter.check_limit("a", 1, 600)]

    assert asyncio.run(use()) == [True, False]
    asyncio.run(limiter.aclose())  # nothing to close in memory


@pytest.mark.parametrize("window", [0, -1])
def test_check_limit__invalid_window__is_refused(window: int) -> None:
    with pytest.raises(ValueError, match=r"window must be 0\.001 to"):
        asyncio.run(RateLimiter("memory://").check_limit("a", 1, window))
