"""The interfaces of the two older limiters, on top of the new ones.

A program changes one import and nothing else, and can change it back. Its call sites then migrate to the new
interface one at a time. ``docs/migrating/from-older-limiters.md`` describes the steps, and where the old
limiters did something that no caller can have wanted.
"""

from __future__ import annotations

from functools import lru_cache, partial

from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.limiter import BaseLimiter, FixedWindowLimiter, TokenBucketLimiter
from comporta.stores.base import Store
from comporta.stores.registry import open_store

LIMITERS_MAX = 256
"""How many pairs of limit and window a ``RateLimiter`` caches; the store keeps the counts."""


class TokenBucket:
    """One bucket with ``rate`` tokens per second and at most ``capacity``; each call takes one token.

    ``state`` and ``name`` are new and optional: buckets with the same store and name are one bucket.
    ``limiter`` is the limiter inside, for call sites that have migrated.
    """

    def __init__(
        self, rate: float, capacity: int, *, state: str | Store | None = None, name: str | None = None
    ) -> None:
        self.limiter = TokenBucketLimiter(LimitConfig(rate, capacity), state, name)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.limiter.config.rate

    @property
    def capacity(self) -> int:
        """The most tokens that the bucket can hold."""
        return self.limiter.config.capacity

    @property
    def tokens(self) -> float:
        """The tokens in the bucket now, with fractions. Blocks for a round trip if a server holds them."""
        decision = self.limiter.sync.peek()
        return max(decision.remaining, self.capacity - decision.reset_after * self.rate)

    async def acquire(self) -> bool:
        """Take a token; false if the bucket is empty."""
        return await self.limiter.acquire()


class RateLimiter:
    """Counts the calls of each key and allows the first ``limit`` in each window.

    A window starts with its first call.

    ``redis_url`` may be any store URL. Calls with the same limit and window count together with those of a
    ``FixedWindowLimiter`` with the same numbers and store, so that call sites can migrate one at a time.
    """

    def __init__(self, redis_url: str) -> None:
        self._store = open_store(redis_url)
        self._limiter = lru_cache(maxsize=LIMITERS_MAX)(partial(_fixed_window, self._store))

    async def check_limit(self, key: str, limit: int, window: int) -> bool:
        """Count a call; true if it is within the limit. A limit below 1 allows nothing, as before."""
        if limit < 1:
            return False
        return await self._limiter(limit, window).acquire(key)

    def limiter(self, limit: int, window: int) -> BaseLimiter:
        """Return the limiter inside, for call sites that have migrated."""
        return self._limiter(limit, window)

    async def aclose(self) -> None:
        """Close the store's connections; it reopens them when needed."""
        await self._store.aclose()


def _fixed_window(store: Store, limit: int, window: int) -> BaseLimiter:
    LimitConfig(1, limit, window, LimitStrategy.FIXED_WINDOW)  # raises for a window of 0 before the division
    return FixedWindowLimiter(LimitConfig(limit / window, limit, window), store)
