"""Limits, permits, circuits and caches on every engine do what their models do, call by call."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from tests.cache.harness import CacheHarness
from tests.stateful.machines import (
    FRESH,
    STALE,
    BreakerMachine,
    CacheMachine,
    Engines,
    LimiterMachine,
    Machine,
    PermitMachine,
)
from tests.support import SOAK, memory_store, redis_store, shared_store

from comporta import HealthCache
from comporta.database.urls import open_database
from comporta.testing import ManualClock, Server

STEPS_PER_RUN = 50
STEPS_MIN = 15_000 if SOAK else 2_000
CACHE_STEPS_MIN = 5_000 if SOAK else 300
"""How many steps each of the six tests on stores takes at least, and each of the two on databases."""


@pytest.fixture
def engines(valkey: Server, clock: ManualClock, runner: asyncio.Runner | None) -> Iterator[Engines]:
    """Open a store of each kind on one clock."""
    with ExitStack() as ends:
        redis = ends.enter_context(redis_store(valkey, clock))
        memory = ends.enter_context(memory_store(clock))
        shared = ends.enter_context(shared_store(clock, memory=64))
        yield Engines({"memory": memory, "shared": shared, "redis": redis}, clock, runner)
        if runner is not None:
            runner.run(redis.aclose())


@pytest.mark.parametrize("machine", [LimiterMachine, PermitMachine, BreakerMachine])
def test_engines__any_calls__reply_as_their_model(machine: type[Machine], engines: Engines) -> None:
    while engines.steps < STEPS_MIN:
        _run(lambda: machine(engines))


@pytest.fixture
def caches(
    migrated_sqlite: str,
    migrated_postgres: str,
    clock: ManualClock,
    runner: asyncio.Runner | None,
    tmp_path: Path,
) -> Iterator[dict[str, CacheHarness]]:
    """Open a cache on a database of each kind."""
    shutil.copy(migrated_sqlite.removeprefix("sqlite:///"), tmp_path / "test.db")
    urls = {"sqlite": f"sqlite:///{tmp_path}/test.db?", "postgresql": f"{migrated_postgres}&"}
    with ExitStack() as ends:
        caches = {}
        for kind, url in urls.items():
            database = ends.enter_context(closing(open_database(f"{url}timeout=30")))
            options: dict[str, Any] = {
                "fresh": FRESH,
                "stale": STALE,
                "refresh_every": 50,
                "state": "memory://",
                "clock": clock,
            }
            caches[kind] = CacheHarness(HealthCache(database, migrate=False, **options), runner)
            ends.callback(caches[kind].close)
        yield caches


def test_cache__any_fetches__sees_what_its_model_says(
    caches: dict[str, CacheHarness], clock: ManualClock
) -> None:
    steps = itertools.count(1)
    while next(steps) < CACHE_STEPS_MIN:
        _run(lambda: CacheMachine(caches, clock, lambda: next(steps)))


def _run(factory: Callable[[], RuleBasedStateMachine]) -> None:
    """Run a machine some times; Hypothesis accepts any callable that makes one, but declares a class."""
    options = settings(max_examples=20, stateful_step_count=STEPS_PER_RUN, deadline=None)
    run_state_machine_as_test(cast(type[RuleBasedStateMachine], factory), settings=options)
