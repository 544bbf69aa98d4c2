"""Workers that fetch through a cache: one SQLite file for the fleet, and a source that takes some time.

The cache, its single flight, its fetch leases and its database are the real ones. SQLite takes its time from
the runtime, so the file ages with the fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from greenlet import GreenletExit  # type: ignore[import-untyped]

from comporta.cache.cache import HealthCache
from comporta.database.base import Parameters, Rows, Statement
from comporta.database.sqlite import SqliteDatabase
from comporta.runtime import RUNTIME
from comporta.simulation.worker import SimulatedWorker
from comporta.simulation.workload import Calls, SimulatedCaller

if TYPE_CHECKING:
    from comporta.simulation.program import Program

KEYS = 3
LOAD_SECONDS = 0.3
LEASE_SECONDS = 1.5


class SimulatedDatabase(SqliteDatabase):
    """The SQLite file as one worker uses it: a process that has ended writes nothing more."""

    def __init__(self, path: Path, worker: SimulatedWorker) -> None:
        super().__init__(path)
        self._worker = worker

    def close_files(self) -> None:
        """Close the connections of a process that has ended."""
        self._close()

    def _write(self, statements: Sequence[Statement], parameters: Parameters, seconds: float) -> list[Rows]:
        if self._worker.is_dead:
            raise GreenletExit
        return super()._write(statements, parameters, seconds)


class CacheCalls(Calls):
    """Fetches one of a few keys, whose results are soon stale."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        database = SimulatedDatabase(program.fleet.folder / "cache.db", program.worker)
        program.fleet.files.callback(database.close_files)
        self._cache = HealthCache(
            database,
            fresh=1.0,
            stale=2.0,
            lease_seconds=LEASE_SECONDS,
            refresh_timeout=5.0,
            refresh_every=0.5,
            state=program.store,
            migrate=True,
        )

    def perform(self, caller: SimulatedCaller) -> int:
        """Fetch a key."""
        key = caller.random.randrange(KEYS)
        self._cache.sync.fetch("user", {"key": key}, partial(self._load, key))
        return 1

    async def perform_async(self, caller: SimulatedCaller) -> int:
        """Fetch a key."""
        key = caller.random.randrange(KEYS)
        await self._cache.fetch("user", {"key": key}, partial(self._load_async, key))
        return 1

    def _load(self, key: int) -> dict[str, int]:
        with self._noted_load(key):
            RUNTIME.sleep(LOAD_SECONDS)
        return {"key": key}

    async def _load_async(self, key: int) -> dict[str, int]:
        with self._noted_load(key):
            await asyncio.sleep(LOAD_SECONDS)
        return {"key": key}

    @contextmanager
    def _noted_load(self, key: int) -> Iterator[None]:
        """Record when a load begins and when it has ended."""
        name = self.program.worker.name
        self.fleet.note(name, "load_began", str(key))
        yield
        self.fleet.note(name, "load_ended", str(key))
