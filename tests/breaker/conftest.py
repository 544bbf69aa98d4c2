"""Every store, on a clock moved by hand, and both faces."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import pytest
from tests.breaker.faces import Face
from tests.support import memory_store, redis_store, shared_store

from comporta import CircuitBreaker
from comporta.stores.base import Store
from comporta.stores.redis import RedisStore
from comporta.stores.shared import SharedStore
from comporta.testing import ManualClock, Server

MakeFace = Callable[..., Face]


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock, valkey: Server) -> Iterator[Store]:
    makers: dict[str, Callable[[], AbstractContextManager[Store]]] = {
        "memory": lambda: memory_store(clock),
        "shared": lambda: shared_store(clock),
        "redis": lambda: redis_store(valkey, clock),
    }
    with makers[request.param]() as made:
        yield made


@pytest.fixture(params=["shared", "redis"])
def between(request: pytest.FixtureRequest, clock: ManualClock, valkey: Server) -> Iterator[Store]:
    """Give a store that others share."""
    with shared_store(clock) if request.param == "shared" else redis_store(valkey, clock) as made:
        yield made


@pytest.fixture
def make(store: Store, runner: asyncio.Runner | None) -> Iterator[MakeFace]:
    def made(**config: Any) -> Face:
        return Face(CircuitBreaker("pncp", state=store, **config), runner)

    yield made
    if runner is not None and isinstance(store, RedisStore):
        runner.run(store.aclose())


@pytest.fixture
def pair(between: Store, runner: asyncio.Runner | None) -> Iterator[Callable[..., tuple[Face, Face]]]:
    """Make the same breaker in two workers: each has a store, and so a view, of its own."""
    with ExitStack() as ends:

        def made(**config: Any) -> tuple[Face, Face]:
            other = another(between)
            ends.callback(other.close)
            if runner is not None and isinstance(other, RedisStore):
                ends.callback(lambda: runner.run(other.aclose()))
            one, two = (CircuitBreaker("pncp", state=store, **config) for store in (between, other))
            return Face(one, runner), Face(two, runner)

        yield made
        if runner is not None and isinstance(between, RedisStore):
            runner.run(between.aclose())


def another(store: Store) -> Store:
    """Open the state of a store once more."""
    if isinstance(store, SharedStore):
        found = re.search("test-[0-9a-f]{32}", store.path)
        assert found is not None
        return SharedStore(found[0], store.clock, 1024)
    assert isinstance(store, RedisStore)
    return RedisStore(store.url, timeout=5.0, clock=store.clock)
