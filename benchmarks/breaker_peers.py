"""Peers with circuit breakers, retries and timeouts, each set up according to its documentation.

The called functions do nothing: :func:`nothing` and :func:`nothing_async`. Where a peer offers a decorator,
the decorated function is measured without any wrapper. Five consecutive failures open a circuit for 30 s
where a peer supports that; interlock uses a failure rate over a window instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import circuitbreaker  # type: ignore[import-untyped]  # it ships no types
import hyx.circuitbreaker
import hyx.retry
import hyx.timeout
import interlock
import interlock.integrations.redis
import pybreaker
import pyresilience
import redis
import redis.asyncio

from benchmarks.measure import Contender

BARE = "bare call"
CIRCUITBREAKER = "circuitbreaker"
PYBREAKER = "pybreaker"
HYX = "hyx"
INTERLOCK = "interlock"
PYRESILIENCE = "pyresilience"

THRESHOLD = 5
COOLDOWN_SECONDS = 30
RETRIES = 3
TIMEOUT_SECONDS = 30.0


def nothing(_: str) -> bool:
    """Succeed immediately, in place of a blocking call."""
    return True


async def nothing_async(_: str) -> bool:
    """Succeed immediately, in place of an asynchronous call."""
    return True


# a breaker in the process -------------------------------------------------------------------------


def blocking() -> list[Contender]:
    """Return the breakers of one process, blocking: as decorators, then as blocks."""
    return [
        Contender(BARE, "", nothing),
        Contender(CIRCUITBREAKER, "", _circuitbreaker()(nothing)),
        Contender(PYBREAKER, "", _pybreaker()(nothing)),
        Contender(INTERLOCK, "", interlock.CircuitBreaker(name="decorated")(nothing)),
        Contender(CIRCUITBREAKER, "with, counts only", _block(_circuitbreaker())),
        Contender(PYBREAKER, "with", _pybreaker_block(_pybreaker())),
        Contender(INTERLOCK, "with", _block(interlock.CircuitBreaker(name="block"))),
    ]


def awaiting() -> list[Contender]:
    """Return the breakers of one process, asynchronous: as decorators, then as blocks."""
    return [
        Contender(BARE, "", nothing_async),
        Contender(CIRCUITBREAKER, "", _circuitbreaker()(nothing_async)),
        Contender(HYX, "", _hyx()(nothing_async)),
        Contender(INTERLOCK, "", interlock.CircuitBreaker(name="decorated")(nothing_async)),
        Contender(CIRCUITBREAKER, "with, counts only", _block_in_coroutine(_circuitbreaker())),
        Contender(HYX, "async with", _block_async(_hyx())),
        Contender(INTERLOCK, "async with", _block_async(interlock.CircuitBreaker(name="block"))),
    ]


def _circuitbreaker() -> Any:
    return circuitbreaker.CircuitBreaker(THRESHOLD, COOLDOWN_SECONDS)


def _pybreaker(storage: Any = None) -> pybreaker.CircuitBreaker:
    return pybreaker.CircuitBreaker(THRESHOLD, COOLDOWN_SECONDS, state_storage=storage)


def _hyx() -> Any:
    return hyx.circuitbreaker.consecutive_breaker(
        failure_threshold=THRESHOLD, recovery_time_secs=COOLDOWN_SECONDS
    )


def _block(breaker: Any) -> Callable[[str], bool]:
    def call(key: str) -> bool:
        with breaker:
            return nothing(key)

    return call


def _pybreaker_block(breaker: pybreaker.CircuitBreaker) -> Callable[[str], bool]:
    def call(key: str) -> bool:
        with breaker.calling():
            return nothing(key)

    return call


def _block_in_coroutine(breaker: Any) -> Callable[[str], Any]:
    async def call(key: str) -> bool:
        with breaker:
            return await nothing_async(key)

    return call


def _block_async(breaker: Any) -> Callable[[str], Any]:
    async def call(key: str) -> bool:
        async with breaker:
            return await nothing_async(key)

    return call


# retry, breaker and timeout -----------------------------------------------------------------------


def composed() -> list[Callable[[], Contender]]:
    """Return functions that create the compositions on an event loop, which hyx's timeout requires."""
    return [
        lambda: Contender(BARE, "", nothing_async),
        lambda: Contender("asyncio.timeout", "alone", _timed),
        lambda: Contender(PYRESILIENCE, "@resilient", _pyresilience()),
        lambda: Contender(HYX, "@retry @breaker @timeout", _hyx_decorated()),
        lambda: Contender(HYX, "@retry @breaker, async with timeout", _hyx_block()),
    ]


async def _timed(key: str) -> bool:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        return await nothing_async(key)


def _pyresilience() -> Any:
    together = pyresilience.resilient(
        retry=pyresilience.RetryConfig(1 + RETRIES),
        circuit_breaker=pyresilience.CircuitBreakerConfig(THRESHOLD, COOLDOWN_SECONDS),
        timeout=pyresilience.TimeoutConfig(TIMEOUT_SECONDS),
    )
    return together(nothing_async)


def _hyx_decorated() -> Any:
    timed = hyx.timeout.timeout(TIMEOUT_SECONDS)(nothing_async)
    return hyx.retry.retry(attempts=RETRIES)(_hyx()(timed))


def _hyx_block() -> Any:
    async def timed(key: str) -> bool:
        async with hyx.timeout.timeout(TIMEOUT_SECONDS):
            return await nothing_async(key)

    return hyx.retry.retry(attempts=RETRIES)(_hyx()(timed))


# a breaker shared through a server ----------------------------------------------------------------


def on_redis(url: str) -> list[Contender]:
    """Return the breakers that share a circuit through a server, blocking."""
    # pybreaker expects text, and its documentation names the client for that.
    stored = pybreaker.CircuitRedisStorage(pybreaker.STATE_CLOSED, redis.StrictRedis.from_url(url))
    shared = interlock.CircuitBreaker(
        name="blocking", storage=interlock.integrations.redis.RedisStorage(redis.Redis.from_url(url))
    )
    return [
        Contender(BARE, "", nothing),
        Contender(INTERLOCK, "local view", shared(nothing)),
        Contender(PYBREAKER, "Redis storage", _pybreaker(stored)(nothing)),
    ]


def on_redis_async(url: str) -> list[Contender]:
    """Return the breakers that share a circuit through a server, asynchronous."""
    client = redis.asyncio.Redis.from_url(url)
    shared = interlock.CircuitBreaker(
        name="awaiting", storage=interlock.integrations.redis.AsyncRedisStorage(client)
    )

    async def aclose() -> None:
        await shared.aclose()
        await client.aclose()

    return [
        Contender(BARE, "", nothing_async),
        Contender(INTERLOCK, "local view", shared(nothing_async), aclose=aclose),
    ]
