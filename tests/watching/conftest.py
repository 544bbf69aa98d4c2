"""A state of each kind on a clock moved by hand, and a sink that is set back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import store_by_hand

from comporta import events
from comporta.flow import Flow, run, run_async
from comporta.metrics import use_metrics
from comporta.stores.base import Store
from comporta.testing import ManualClock
from comporta.watching import Tallies

Drives = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["memory", "shared", "server"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_by_hand(request, clock) as made:
        yield made


@pytest.fixture
def tallies() -> Iterator[Tallies]:
    made = Tallies()
    previous = use_metrics(made)
    yield made
    use_metrics(previous)


@pytest.fixture(params=["blocking", "awaiting"])
def drive(request: pytest.FixtureRequest, store: Store) -> Iterator[Drives]:
    if request.param == "blocking":
        yield run
        return
    with asyncio.Runner() as runner:
        yield lambda flow: runner.run(run_async(flow))
        if hasattr(store, "aclose"):
            runner.run(store.aclose())


@pytest.fixture(autouse=True)
def no_listeners_left() -> Iterator[None]:
    """Whoever listens stops: the tests after these have events of their own."""
    before = list(events._listeners)
    yield
    assert events._listeners == before
