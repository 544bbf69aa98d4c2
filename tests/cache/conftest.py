"""Caches on each database, through both faces, on a clock moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.cache.faces import Face, Source

from comporta import HealthCache
from comporta.database.base import Database
from comporta.testing import ManualClock

Make = Callable[..., Face]


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def make(database: Database, clock: ManualClock, runner: asyncio.Runner | None) -> Iterator[Make]:
    """Make caches, as many workers would: on one database, each with a memory of its own."""
    with ExitStack() as ends:

        def made(**config: Any) -> Face:
            given: dict[str, Any] = {
                "fresh": 100,
                "stale": 1000,
                "refresh_every": 50,
                "state": "memory://",
                "clock": clock,
            }
            face = Face(HealthCache(database, migrate=False, **given | config), runner)
            ends.callback(face.close)
            return face

        yield made
