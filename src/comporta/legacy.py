"""The two older limiters, call for call, on the new ones underneath.

A program changes one import and nothing else, and can change it back; then its call sites move to the new
interface one at a time. docs/moving-from-older-limiters.md goes through it, and says where the old ones did
something that nobody can have meant.
"""

from __future__ import annotations

from functools import lru_cache, partial

from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.limiter import BaseLimiter, FixedWindowLimiter, TokenBucketLimiter
from comporta.stores.base import Store
from comporta.stores.urls import open_store

LIMITERS_MAX = 256
"""How many pairs of limit and window a ``RateLimiter`` keeps ready; the counts are in the state."""


class TokenBucket:
    """One bucket: ``rate`` tokens a second, at most ``capacity``; each call takes one, or is refused.

    ``state`` and ``name`` are new, and may be left out: with both, all who use the same share the bucket.
    ``limiter`` is the limiter underneath, for call sites that have moved.
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
        """The most tokens there can be."""
        return self.limiter.config.capacity

    @property
    def tokens(self) -> float:
        """The tokens there are now, fractions included. On a shared state this asks it, blocking."""
        now = self.limiter.sync.peek()
        return max(now.remaining, self.capacity - now.reset_after * self.rate)

    async def acquire(self) -> bool:
        """Take a token; false if there is none."""
        return await self.limiter.acquire()


class RateLimiter:
    """Counts calls of each key: the first ``limit`` in a window are allowed, and it starts with the first.

    ``redis_url`` may be any state URL. Calls with the same limit and window count together with those of a
    ``FixedWindowLimiter`` of the same numbers on the same state, so that call sites can move one at a time.
    """

    def __init__(self, redis_url: str) -> None:
        self._store = open_store(redis_url)
        self._limiter = lru_cache(maxsize=LIMITERS_MAX)(partial(_fixed_window, self._store))

    async def check_limit(self, key: str, limit: int, window: int) -> bool:
        """Count a call; true if it is within the limit. A limit below 1 allows nothing, as it always did."""
        if limit < 1:
            return False
        return await self._limiter(limit, window).acquire(key)

    def limiter(self, limit: int, window: int) -> BaseLimiter:
        """Return the limiter underneath, for call sites that have moved."""
        return self._limiter(limit, window)

    async def aclose(self) -> None:
        """Close the connections to the server, if there are any; they open again when needed."""
        if hasattr(self._store, "aclose"):
            await self._store.aclose()


def _fixed_window(store: Store, limit: int, window: int) -> BaseLimiter:
    LimitConfig(1, limit, window, LimitStrategy.FIXED_WINDOW)  # names what is wrong before it is divided
    return FixedWindowLimiter(LimitConfig(limit / window, limit, window), store)
