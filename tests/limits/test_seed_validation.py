"""The validation program of the specification, run as it is written there.

It is text, because a formatter would change it. Only the imports, which it lacks, and the address of the
server are added.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support import command

import comporta
from comporta.stores.registry import open_store
from comporta.testing import Server

PROGRAM = """
async def test_rate_limit_system():
    # Setup
    manager = RateLimitManager()
    monitor = RateLimitMonitor()

    # Register limiters
    token_config = LimitConfig(
        rate=10.0,
        capacity=10,
        strategy=LimitStrategy.TOKEN_BUCKET
    )

    window_config = LimitConfig(
        rate=10.0,
        capacity=10,
        window=60,
        strategy=LimitStrategy.FIXED_WINDOW
    )

    redis_config = LimitConfig(
        rate=10.0,
        capacity=10,
        window=60,
        strategy=LimitStrategy.SLIDING_WINDOW,
        distributed=True
    )

    token_limiter = TokenBucketLimiter(token_config)
    window_limiter = FixedWindowLimiter(window_config)
    redis_limiter = RedisLimiter(
        redis_config,
        "redis://localhost"
    )

    manager.register_limiter("token", token_limiter)
    manager.register_limiter("window", window_limiter)
    manager.register_limiter("redis", redis_limiter)

    # Test token bucket
    key = LimitKey("test", "token1", "v1")
    allowed = await manager.acquire(key, "token")
    assert allowed is True

    # Test fixed window
    key = LimitKey("test", "window1", "v1")
    for _ in range(10):
        allowed = await manager.acquire(key, "window")
        assert allowed is True

    allowed = await manager.acquire(key, "window")
    assert allowed is False

    # Test Redis limiter
    key = LimitKey("test", "redis1", "v1")
    allowed = await manager.acquire(key, "redis")
    assert allowed is True

    # Test monitoring
    await monitor.record_operation(
        "token",
        "test",
        True,
        0.001
    )
"""

SERVER = '"redis://localhost"'


def test_seed_program__on_a_real_server__runs_as_written(server: Server) -> None:
    command(server, "FLUSHALL")
    assert PROGRAM.count(SERVER) == 1
    names: dict[str, Any] = {name: getattr(comporta, name) for name in comporta.__all__}
    exec(PROGRAM.replace(SERVER, repr(server.url + "?timeout=5")), names)  # noqa: S102 - the text above

    async def validate() -> None:
        try:
            await names["test_rate_limit_system"]()
        finally:
            await open_store(server.url + "?timeout=5").aclose()

    asyncio.run(validate())
