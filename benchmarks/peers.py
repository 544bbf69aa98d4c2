"""The peers, each set up according to its documentation, as functions from a key to a result.

``functools.partial`` is used instead of Python functions where possible, so that no peer pays for a wrapper.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyrate_limiter as pyrate
import redis
import redis.asyncio
import throttled
import throttled.asyncio
from aiolimiter import AsyncLimiter
from limits import RateLimitItemPerSecond, storage, strategies
from limits.aio import storage as aio_storage
from limits.aio import strategies as aio_strategies

from benchmarks.measure import Contender

LIMITS = "limits"
THROTTLED = "throttled-py"
PYRATE = "pyrate-limiter"
AIOLIMITER = "aiolimiter"
BARE = "redis-py"

_KEYS_MAX = 1_000_000
# With redis-py's default of 100, the next coroutine gets "Too many connections" instead of a result.
_CONNECTIONS_MAX = 1000
_SCRIPT = Path(__file__).with_name("token_bucket.lua")


def _not_limited(result: Any) -> bool:
    return not result.limited


# in memory ----------------------------------------------------------------------------------------


def in_memory(per_second: int) -> list[Contender]:
    """Return the peers that keep state in the process, blocking."""
    item = RateLimitItemPerSecond(per_second)
    return [
        *(
            Contender(LIMITS, variant, partial(strategy(storage.MemoryStorage()).hit, item))
            for variant, strategy in _LIMITS.items()
        ),
        *(
            Contender(THROTTLED, variant, _throttled(using, per_second).limit, _not_limited)
            for variant, using in _THROTTLED.items()
        ),
        _pyrate("log", lambda _: pyrate.InMemoryBucket(_rates(per_second)), pyrate.MonotonicClock()),
        _pyrate("token bucket", lambda _: _pyrate_state(per_second), pyrate.MonotonicClock()),
    ]


def in_memory_async(per_second: int) -> list[Contender]:
    """Return the peers that keep state in the process, asynchronous."""
    item = RateLimitItemPerSecond(per_second)
    return [
        Contender(AIOLIMITER, "one each key", _AioLimiters(per_second), _always),
        *(
            Contender(LIMITS, variant, partial(strategy(aio_storage.MemoryStorage()).hit, item))
            for variant, strategy in _LIMITS_AIO.items()
        ),
        *(
            Contender(THROTTLED, variant, _throttled_async(using, per_second).limit, _not_limited)
            for variant, using in _THROTTLED.items()
        ),
    ]


_LIMITS: dict[str, Any] = {
    "fixed": strategies.FixedWindowRateLimiter,
    "moving": strategies.MovingWindowRateLimiter,
    "sliding": strategies.SlidingWindowCounterRateLimiter,
}
_LIMITS_AIO: dict[str, Any] = {
    "fixed": aio_strategies.FixedWindowRateLimiter,
    "moving": aio_strategies.MovingWindowRateLimiter,
    "sliding": aio_strategies.SlidingWindowCounterRateLimiter,
}
_THROTTLED = {
    "GCRA": throttled.RateLimiterType.GCRA.value,
    "token bucket": throttled.RateLimiterType.TOKEN_BUCKET.value,
}


def _throttled(using: str, per_second: int) -> throttled.Throttled:
    # By default its store evicts the oldest of 1,024 keys.
    store = throttled.MemoryStore(options={"MAX_SIZE": _KEYS_MAX})
    quota = throttled.per_sec(per_second, burst=per_second)
    return throttled.Throttled(using=using, quota=quota, store=store)


def _throttled_async(using: str, per_second: int) -> throttled.asyncio.Throttled:
    store = throttled.asyncio.MemoryStore(options={"MAX_SIZE": _KEYS_MAX})
    quota = throttled.per_sec(per_second, burst=per_second)
    return throttled.asyncio.Throttled(using=using, quota=quota, store=store)


def _rates(per_second: int) -> list[pyrate.Rate]:
    return [pyrate.Rate(per_second, pyrate.Duration.SECOND)]


class _Buckets(pyrate.BucketFactory):
    """A pyrate bucket for each key, without its leak thread, which would run in the turns of others."""

    def __init__(self, make: Callable[[str], pyrate.AbstractBucket], clock: pyrate.AbstractClock) -> None:
        self._make = make
        self._clock = clock
        self._buckets: dict[str, pyrate.AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate.RateItem:
        now: Any = self._clock.now()  # the clocks used here return a number, not an awaitable
        return pyrate.RateItem(name, now, weight=weight)

    def get(self, item: pyrate.RateItem) -> pyrate.AbstractBucket:
        bucket = self._buckets.get(item.name)
        if bucket is None:
            bucket = self._buckets[item.name] = self._make(item.name)
        return bucket


def _pyrate(
    variant: str, make: Callable[[str], pyrate.AbstractBucket], clock: pyrate.AbstractClock
) -> Contender:
    limiter = pyrate.Limiter(_Buckets(make, clock))
    return Contender(PYRATE, variant, partial(limiter.try_acquire, blocking=False))


def _pyrate_state(per_second: int, store: pyrate.StateStore | None = None) -> pyrate.AbstractBucket:
    return pyrate.StateBucket(_rates(per_second), algorithm=pyrate.TokenBucket(), store=store)


class _AioLimiters:
    """A dictionary of limiters, because aiolimiter has no keys."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._limiters: dict[str, AsyncLimiter] = {}

    def __call__(self, key: str) -> Any:
        limiter = self._limiters.get(key)
        if limiter is None:
            limiter = self._limiters[key] = AsyncLimiter(self._per_second, 1)
        return limiter.acquire()


def _always(_: Any) -> bool:
    return True


# on Redis -----------------------------------------------------------------------------------------


def on_redis(url: str, per_second: int) -> list[Contender]:
    """Return the peers that keep state in Redis, blocking."""
    item = RateLimitItemPerSecond(per_second)
    client = redis.Redis.from_url(url)
    quota = throttled.per_sec(per_second, burst=per_second)
    store = throttled.RedisStore(server=url)
    return [
        *(
            Contender(LIMITS, variant, partial(strategy(_limits(url, variant)).hit, item))
            for variant, strategy in _LIMITS.items()
        ),
        *(
            Contender(
                THROTTLED,
                variant,
                throttled.Throttled(using=using, quota=quota, store=store).limit,
                _not_limited,
            )
            for variant, using in _THROTTLED.items()
        ),
        _pyrate(
            "log",
            lambda key: pyrate.RedisBucket.init(_rates(per_second), client, f"pyrate:log:{key}"),
            pyrate.WallClock(),
        ),
        _pyrate(
            "token bucket",
            lambda key: _pyrate_state(per_second, pyrate.RedisStateStore(client, f"pyrate:state:{key}")),
            pyrate.WallClock(),
        ),
    ]


def on_redis_async(url: str, per_second: int) -> list[Contender]:
    """Return the peers that keep state in Redis, asynchronous."""
    return [
        *(_limits_on_redis(url, per_second, variant) for variant in _LIMITS_AIO),
        *(_throttled_on_redis(url, per_second, variant) for variant in _THROTTLED),
    ]


def _limits_on_redis(url: str, per_second: int, variant: str) -> Contender:
    redis_storage: Any = aio_storage.RedisStorage(
        f"async+{url}",
        implementation="redispy",
        key_prefix=f"limits-{variant}",
        max_connections=_CONNECTIONS_MAX,
    )
    decide = partial(_LIMITS_AIO[variant](redis_storage).hit, RateLimitItemPerSecond(per_second))
    return Contender(LIMITS, variant, decide, aclose=redis_storage.bridge.storage.aclose)


def _throttled_on_redis(url: str, per_second: int, variant: str) -> Contender:
    options = {"CONNECTION_POOL_KWARGS": {"max_connections": _CONNECTIONS_MAX}}
    store = throttled.asyncio.RedisStore(server=url, options=options)
    quota = throttled.per_sec(per_second, burst=per_second)
    limiter = throttled.asyncio.Throttled(using=_THROTTLED[variant], quota=quota, store=store)
    client: Any = store._backend.get_client()  # noqa: SLF001 - it has no public way to close its connections
    aclose = client.connection_pool.disconnect
    return Contender(THROTTLED, variant, limiter.limit, _not_limited, aclose)


def _limits(url: str, variant: str) -> storage.RedisStorage:
    # With the same prefix, its strategies would use different types at one key and fail.
    return storage.RedisStorage(url, key_prefix=f"limits-{variant}")


def bare(url: str, per_second: int) -> list[Contender]:
    """Return what one would write without a library, with redis-py and EVALSHA, and the minimum cost."""
    client = redis.Redis.from_url(url)
    script = client.script_load(_SCRIPT.read_text("utf-8"))
    nothing = client.script_load("return 1")
    return [
        Contender(BARE, "EVALSHA, minimal token bucket", _evalsha(client, script, per_second)),
        Contender(BARE, "EVALSHA, return 1", _evalsha(client, nothing, per_second)),
    ]


def bare_async(url: str, per_second: int) -> list[Contender]:
    """Return the same, asynchronous."""
    with redis.Redis.from_url(url) as loader:
        script = loader.script_load(_SCRIPT.read_text("utf-8"))
    client = redis.asyncio.Redis.from_url(url, max_connections=_CONNECTIONS_MAX)
    decide = _evalsha(client, script, per_second)
    return [Contender(BARE, "EVALSHA, minimal token bucket", decide, aclose=client.aclose)]


def _evalsha(client: Any, script: Any, per_second: int) -> Callable[[str], Any]:
    def decide(key: str) -> Any:
        return client.evalsha(script, 1, key, per_second, per_second)

    return decide
