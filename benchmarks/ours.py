"""comporta's own contenders."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.measure import Contender
from comporta import (
    BaseLimiter,
    FixedWindowLimiter,
    LeakyBucketLimiter,
    LimitConfig,
    RedisLimiter,
    SlidingWindowLimiter,
    TokenBucketLimiter,
)

COMPORTA = "comporta"
LIMITERS = {
    "token bucket": TokenBucketLimiter,
    "fixed window": FixedWindowLimiter,
    "sliding window": SlidingWindowLimiter,
    "leaky bucket": LeakyBucketLimiter,
}


def limit(per_second: int) -> LimitConfig:
    """Return a limit per second, with a burst of the same size."""
    return LimitConfig(per_second, per_second, 1)


def blocking(per_second: int, state: str = "memory://") -> list[Contender]:
    """Return every strategy, blocking."""
    return [_blocking(variant, kind(limit(per_second), state)) for variant, kind in LIMITERS.items()]


def awaiting(per_second: int, state: str = "memory://") -> list[Contender]:
    """Return every strategy, asynchronous."""
    return [_awaiting(variant, kind(limit(per_second), state)) for variant, kind in LIMITERS.items()]


def with_long_timeout(url: str) -> str:
    """Return a URL with a long timeout: local decisions in a fallback would be unfairly fast."""
    return f"{url}?timeout=5"


def on_redis(url: str, per_second: int) -> Contender:
    """Return the token bucket on a server, blocking."""
    return _blocking("redis://", RedisLimiter(limit(per_second), with_long_timeout(url)))


def leased(url: str, per_second: int) -> Contender:
    """Return the token bucket on a server, with leases, blocking."""
    config = replace(limit(per_second), lease=True)
    return _blocking("redis://, leased", RedisLimiter(config, with_long_timeout(url), f"leased-{per_second}"))


def on_redis_async(url: str, per_second: int) -> Contender:
    """Return the token bucket on a server, asynchronous."""
    return _awaiting("redis://", RedisLimiter(limit(per_second), with_long_timeout(url)))


def shared(state: str, per_second: int) -> Contender:
    """Return the token bucket on ``shared://``, blocking."""
    return _blocking("shared://", TokenBucketLimiter(limit(per_second), state))


def _blocking(variant: str, limiter: BaseLimiter) -> Contender:
    return Contender(COMPORTA, variant, limiter.sync.acquire)


def _awaiting(variant: str, limiter: BaseLimiter) -> Contender:
    return Contender(COMPORTA, variant, limiter.acquire, aclose=limiter.aclose)
