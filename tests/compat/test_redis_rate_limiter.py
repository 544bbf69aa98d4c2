"""``RedisRateLimiter``: one bucket by its name, without keys (A6, A14)."""

from __future__ import annotations

import asyncio

import pytest
from tests.support import command

from comporta.compat.breakers import RedisRateLimiter
from comporta.testing import Server


async def _count_granted(limiter: RedisRateLimiter, calls: int) -> int:
    found = [await limiter.acquire() for _ in range(calls)]
    await limiter.aclose()
    return found.count(True)


def test_redis_rate_limiter__fifteen_calls__grants_ten_under_a_readable_key(server: Server) -> None:
    command(server, "FLUSHALL")
    limiter = RedisRateLimiter("pncp", max_tokens=10, refill_rate=0.001, redis_url=f"{server.url}?timeout=5")
    assert asyncio.run(_count_granted(limiter, 15)) == 10
    assert float(command(server, "HGET", "rate_limiter:pncp", "tokens").split(b"\r\n")[1]) < 1


def test_redis_rate_limiter__no_url__uses_the_environment(
    valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    command(valkey, "FLUSHALL")
    monkeypatch.setenv("REDIS_URL", f"{valkey.url}?timeout=5")
    assert asyncio.run(_count_granted(RedisRateLimiter("pcp", 3, 0.001), 5)) == 3
    assert command(valkey, "EXISTS", "rate_limiter:pcp") == b":1\r\n"
