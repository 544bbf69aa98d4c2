"""Caches on each database, through async and blocking methods, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cache.harness import CacheHarness, FakeSource

from comporta import HealthCache
from comporta.database.base import Database
from comporta.testing import ManualClock

MakeCache = Callable[..., CacheHarness]


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def make_cache(database: Database, clock: ManualClock, runner: asyncio.Runner | None) -> Iterator[MakeCache]:
    """MakeCache caches on one database, each with its own memory, as several workers have them."""
    with ExitStack() as stack:

        def make(**options: Any) -> CacheHarness:
            defaults: dict[str, Any] = {
                "fresh": 100,
                "stale": 1000,
                "refresh_every": 50,
                "state": "memory://",
                "clock": clock,
            }
            cache = CacheHarness(HealthCache(database, migrate=False, **defaults | options), runner)
            stack.callback(cache.close)
            return cache

        yield make
