"""Every store on a manual clock, and breakers for blocking and async code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from tests.breaker.drivers import Driver
from tests.support import memory_store, redis_store, shared_store

from comporta import CircuitBreaker
from comporta.stores.base import Store
from comporta.stores.redis.store import RedisStore
from comporta.stores.shared.store import SharedStore
from comporta.testing import ManualClock, Server

MakeDriver = Callable[..., Driver]


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock, valkey: Server) -> Iterator[Store]:
    makers: dict[str, Callable[[], AbstractContextManager[Store]]] = {
        "memory": lambda: memory_store(clock),
        "shared": lambda: shared_store(clock),
        "redis": lambda: redis_store(valkey, clock),
    }
    with makers[request.param]() as opened:
        yield opened


@pytest.fixture(params=["shared", "redis"])
def shared_state(request: pytest.FixtureRequest, clock: ManualClock, valkey: Server) -> Iterator[Store]:
    """Give a store that other processes share."""
    with shared_store(clock) if request.param == "shared" else redis_store(valkey, clock) as opened:
        yield opened


@pytest.fixture
def make(store: Store, runner: asyncio.Runner | None) -> Iterator[MakeDriver]:
    def make(**config: Any) -> Driver:
        return Driver(CircuitBreaker("pncp", state=store, **config), runner)

    yield make
    if runner is not None and isinstance(store, RedisStore):
        runner.run(store.aclose())


@pytest.fixture
def pair(
    shared_state: Store, runner: asyncio.Runner | None
) -> Iterator[Callable[..., tuple[Driver, Driver]]]:
    """Make the same breaker in two workers, each with its own store object and local view."""
    with ExitStack() as ends:

        def make(**config: Any) -> tuple[Driver, Driver]:
            other = reopen(shared_state)
            ends.callback(other.close)
            if runner is not None and isinstance(other, RedisStore):
                ends.callback(lambda: runner.run(other.aclose()))
            one, two = (CircuitBreaker("pncp", state=store, **config) for store in (shared_state, other))
            return Driver(one, runner), Driver(two, runner)

        yield make
        if runner is not None and isinstance(shared_state, RedisStore):
            runner.run(shared_state.aclose())


def reopen(store: Store) -> Store:
    """Open the same state with a second store object."""
    if isinstance(store, SharedStore):
        name = re.search("test-[0-9a-f]{32}", store.path)
        assert name is not None
        return SharedStore(name[0], store.clock, 1024)
    assert isinstance(store, RedisStore)
    return RedisStore(store.url, timeout=5.0, clock=store.clock)
