"""Fixtures for tests that run on every store, blocking and awaiting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.limits.faces import BEGIN, STORES, Bench, made_store
from tests.support import loop_runner

from comporta.testing import ManualClock, Server


@pytest.fixture(params=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner | None]:
    with ExitStack() as ends:
        yield ends.enter_context(loop_runner()) if request.param == "awaiting" else None


@pytest.fixture(params=STORES)
def bench(request: pytest.FixtureRequest, valkey: Server, driver: asyncio.Runner | None) -> Iterator[Bench]:
    clock = ManualClock(BEGIN)
    with made_store(request.param, valkey, clock) as store:
        yield Bench(store, clock, driver)
        if driver is not None and hasattr(store, "aclose"):
            driver.run(store.aclose())
