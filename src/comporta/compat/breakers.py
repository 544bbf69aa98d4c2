"""Older class names, so that programs written for them keep working unchanged.

Each is the current class with the arguments of the older one; there is no logic here.
"""

from __future__ import annotations

from comporta.breaker.breaker import CircuitBreaker
from comporta.limits.config import LimitConfig
from comporta.limits.limiter import TokenBucketLimiter
from comporta.stores.registry import default_url


class RedisCircuitBreaker(CircuitBreaker):
    """A breaker that all workers share; ``redis_url`` defaults to the state of the environment."""

    def __init__(
        self,
        name: str,
        threshold: int = 50,
        cooldown_seconds: float = 120.0,
        redis_url: str | None = None,
    ) -> None:
        super().__init__(name, threshold, cooldown_seconds, state=redis_url)


class PNCPCircuitBreaker(CircuitBreaker):
    """A breaker of this process, shared with no other."""

    def __init__(self, name: str = "pncp", threshold: int = 50, cooldown_seconds: float = 120.0) -> None:
        super().__init__(name, threshold, cooldown_seconds, state="memory://")


class RedisRateLimiter:
    """One token bucket for all workers: ``max_tokens`` at most, refilled at ``refill_rate`` per second.

    ``redis_url`` may be any state URL; it defaults to the state of the environment, else this machine. The
    state is the key ``rate_limiter:<name>``. ``limiter`` is the current class, for call sites that have
    moved.
    """

    def __init__(self, name: str, max_tokens: int, refill_rate: float, redis_url: str | None = None) -> None:
        state = default_url(distributed=True) if redis_url is None else redis_url
        self.limiter = TokenBucketLimiter(LimitConfig(refill_rate, max_tokens), state, name)

    async def acquire(self) -> bool:
        """Take a token; return false if the bucket is empty."""
        return await self.limiter.acquire()

    async def aclose(self) -> None:
        """Close the connections to the server, if there are any; they reopen when needed."""
        await self.limiter.aclose()
