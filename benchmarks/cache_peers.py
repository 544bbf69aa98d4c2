"""Peer caches, each set up according to its documentation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiocache import SimpleMemoryCache  # type: ignore[import-untyped]
from aiocache.decorators import cached_stampede  # type: ignore[import-untyped]
from cashews import Cache
from dogpile.cache import make_region

from benchmarks.measure import Contender

CASHEWS, DOGPILE, AIOCACHE = "cashews", "dogpile.cache", "aiocache"
TTL_SECONDS = 600

Origin = Callable[[], Awaitable[Any]]
Fetch = Callable[[], Awaitable[Any]]


def hits(params: dict[str, Any], value: Any) -> list[Callable[[], Contender]]:
    """Return functions that create contenders with the value in memory, each on its own event loop."""

    def cashews_get() -> Contender:
        cache = _cashews()
        ready = cache.set("key", value, expire=TTL_SECONDS)
        return Contender(CASHEWS, "get", _after(ready, lambda _: cache.get("key")))

    def cashews_decorator() -> Contender:
        @_cashews()(ttl=TTL_SECONDS, key="search:{params}")
        async def search(params: dict[str, Any]) -> Any:
            return value

        return Contender(CASHEWS, "decorator", lambda _: search(params))

    def aiocache_get() -> Contender:
        cache = SimpleMemoryCache()
        return Contender(AIOCACHE, "get", _after(cache.set("key", value), lambda _: cache.get("key")))

    def dogpile_get() -> Contender:
        region = make_region().configure("dogpile.cache.memory", expiration_time=TTL_SECONDS)
        region.set("key", value)

        async def get(_: str) -> Any:
            return region.get("key")

        return Contender(DOGPILE, "get", get)

    return [cashews_get, cashews_decorator, aiocache_get, dogpile_get]


def single_flight(origin: Origin, url: str) -> dict[str, Fetch]:
    """Return ways to fetch one absent key; those of cashews share a server."""
    plain, locked = Cache(), Cache()
    plain.setup(url)
    locked.setup(url)

    @plain(ttl=TTL_SECONDS, key="plain")
    async def cashews_plain() -> Any:
        return await origin()

    @locked(ttl=TTL_SECONDS, key="locked", lock=True)
    async def cashews_locked() -> Any:
        return await origin()

    @cached_stampede(lease=2, ttl=TTL_SECONDS, key="stampede")  # type: ignore[untyped-decorator]
    async def aiocache_stampede() -> Any:
        return await origin()

    return {
        f"{CASHEWS} on a server": cashews_plain,
        f"{CASHEWS} on a server, lock": cashews_locked,
        f"{AIOCACHE} stampede": aiocache_stampede,
    }


def in_outage(origin: Origin, soft_seconds: float) -> dict[str, Fetch]:
    """Return ways to fetch a key with a stale value from an origin that may fail."""
    cache = _cashews()

    @cache.failover(ttl=TTL_SECONDS, exceptions=OSError, key="failover")
    @cache(ttl=soft_seconds, key="simple")
    async def failover() -> Any:
        return await origin()

    @cache.soft(ttl=TTL_SECONDS, soft_ttl=soft_seconds, exceptions=OSError, key="soft")
    async def soft() -> Any:
        return await origin()

    @cache.failover(ttl=TTL_SECONDS, exceptions=Exception, key="breaker-failover")
    @cache.circuit_breaker(errors_rate=10, period=1, ttl=1, min_calls=1, key="breaker")
    @cache(ttl=soft_seconds, key="breaker-simple")
    async def breaker() -> Any:
        return await origin()

    return {
        f"{CASHEWS} failover": failover,
        f"{CASHEWS} soft": soft,
        f"{CASHEWS} failover and breaker": breaker,
    }


def _cashews() -> Cache:
    cache = Cache()
    cache.setup("mem://", size=1000)
    return cache


def _after(ready: Awaitable[Any], get: Callable[[str], Awaitable[Any]]) -> Callable[[str], Any]:
    """Return a function that awaits ``ready`` in its first call, and then only calls ``get``."""
    is_ready = False

    def get_when_ready(key: str) -> Awaitable[Any]:
        nonlocal is_ready
        if is_ready:
            return get(key)
        is_ready = True
        return _both(ready, key)

    async def _both(ready: Awaitable[Any], key: str) -> Any:
        await ready
        return await get(key)

    return get_when_ready
