"""A store of each type on a clock that the test moves, and a metrics sink that is restored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import loop_runner, store_on_clock

from comporta import events
from comporta.fleet import FleetCounters
from comporta.flow import Flow, run, run_async
from comporta.metrics import use_metrics
from comporta.stores.base import Store
from comporta.testing import ManualClock

DriveFlow = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["memory", "shared", "server"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_on_clock(request, clock) as opened:
        yield opened


@pytest.fixture
def counters() -> Iterator[FleetCounters]:
    sink = FleetCounters()
    previous = use_metrics(sink)
    yield sink
    use_metrics(previous)


@pytest.fixture(params=["blocking", "async"])
def drive(request: pytest.FixtureRequest, store: Store) -> Iterator[DriveFlow]:
    if request.param == "blocking":
        yield run
        return
    with loop_runner() as runner:
        yield lambda flow: runner.run(run_async(flow))
        runner.run(store.aclose())


@pytest.fixture(autouse=True)
def no_listeners_left() -> Iterator[None]:
    """Check that no test leaves an event listener behind."""
    before = list(events._LOG.get().listeners)
    yield
    assert events._LOG.get().listeners == before
