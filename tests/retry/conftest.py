"""Stores of each kind on a clock moved by hand, and both ways to run a flow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support import store_by_hand

from comporta.flow import Flow, run, run_async
from comporta.stores.base import Store
from comporta.stores.redis import RedisStore
from comporta.testing import ManualClock

Runs = Callable[[Flow[Any]], Any]


@pytest.fixture(params=["memory", "shared", "redis"])
def store(request: pytest.FixtureRequest, clock: ManualClock) -> Iterator[Store]:
    with store_by_hand(request, clock) as made:
        yield made


@pytest.fixture(params=["blocking", "awaiting"])
def runs(request: pytest.FixtureRequest, store: Store) -> Iterator[Runs]:
    """Give a way to run flows on the store: one event loop for all, closed with its connections."""
    if request.param == "blocking":
        yield run
        return
    with asyncio.Runner() as runner:
        yield lambda flow: runner.run(run_async(flow))
        if isinstance(store, RedisStore):
            runner.run(store.aclose())
