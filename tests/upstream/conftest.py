"""A manual clock, a store in memory, and upstreams for blocking and async code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.upstream.drivers import Driver, lowest

from comporta import Retry, Upstream
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, SimulatedUpstream

Make = Callable[..., Driver]


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def make(store: MemoryStore, runner: asyncio.Runner | None) -> Make:
    """Make the upstream ``pncp``, without jitter in its retries and by default with a high limit."""

    def make_driver(limit: str = "1000/s", **options: Any) -> Driver:
        given = {"retry": Retry(draw=lowest, state=store), "state": store, **options}
        return Driver(Upstream("pncp", limit, **given), runner)

    return make_driver


@pytest.fixture
def simulated() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream() as upstream:
        yield upstream
