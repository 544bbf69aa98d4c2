"""Names that older call sites know, each a thin layer over what is behind it."""

from __future__ import annotations

from comporta.limits.config import LimitConfig
from comporta.limits.limiter import TokenBucketLimiter
from comporta.stores.urls import default_url


class RedisRateLimiter:
    """One token bucket for all workers: ``max_tokens`` at once, refilled at ``refill_rate`` per second.

    ``redis_url`` may be any state URL; left out it is what the environment says, else this machine. The state
    is the key ``rate_limiter:<name>``. ``limiter`` is the limiter underneath, for call sites that have moved.
    """

    def __init__(self, name: str, max_tokens: int, refill_rate: float, redis_url: str | None = None) -> None:
        state = default_url(distributed=True) if redis_url is None else redis_url
        self.limiter = TokenBucketLimiter(LimitConfig(refill_rate, max_tokens), state, name)

    async def acquire(self) -> bool:
        """Take a token; false if there is none."""
        return await self.limiter.acquire()

    async def aclose(self) -> None:
        """Close the connections to the server, if there are any; they open again when needed."""
        await self.limiter.aclose()
