"""A clock moved by hand, state in memory, and both faces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.upstream.faces import Face, least

from comporta import Retry, Upstream
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock, SimulatedUpstream

Make = Callable[..., Face]


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def make(store: MemoryStore, runner: asyncio.Runner | None) -> Make:
    """Make the upstream ``pncp``: no jitter in its retries, and by default nothing it has to wait for."""

    def made(limit: str = "1000/s", **options: Any) -> Face:
        given = {"retry": Retry(draw=least, state=store), "state": store, **options}
        return Face(Upstream("pncp", limit, **given), runner)

    return made


@pytest.fixture
def metrics() -> Iterator[InMemoryMetrics]:
    sink = InMemoryMetrics()
    previous = use_metrics(sink)
    yield sink
    use_metrics(previous)


@pytest.fixture
def simulated() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream() as upstream:
        yield upstream
