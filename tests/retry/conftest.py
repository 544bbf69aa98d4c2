"""Stores of each kind on a manual clock, and both drivers of a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import loop_runner, store_on_clock

from comporta.flow import Flow, run, run_async
from comporta.stores.base import Store
from comporta.stores.redis.store import RedisStore
from comporta.testing import ManualClock

RunFlow = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_on_clock(request, clock) as opened:
        yield opened


@pytest.fixture(params=["blocking", "awaiting"])
def run_flow(request: pytest.FixtureRequest, store: Store) -> Iterator[RunFlow]:
    """Give a function that runs flows, blocking or on one event loop, and closes its connections."""
    if request.param == "blocking":
        yield run
        return
    with loop_runner() as runner:
        yield lambda flow: runner.run(run_async(flow))
        if isinstance(store, RedisStore):
            runner.run(store.aclose())
