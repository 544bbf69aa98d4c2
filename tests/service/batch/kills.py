"""Runs jobs while their workers are killed; nothing may be lost."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.processes.fleet import Worker
from tests.service.batch.rig import (
    add_job,
    configure_sheet,
    wait_backfilled,
    wait_finished,
    wait_stored,
    wait_until,
)

from comporta.database.base import Database, Statement
from comporta.database.urls import open_database
from comporta.service.batch.batches import Batches
from comporta.service.batch.sheets import Sheets
from comporta.settings import BatchSettings

WORKERS = 2
ACCOUNTS_PER_KILL = 200
KILLED_ATTEMPTS_MAX = 100
"""Accounts may be attempted so often here: the test kills workers far more often than accounts do."""

_OWNERS = {
    "chunk": Statement("SELECT owner FROM batch_chunks WHERE owner <> '' ORDER BY lease_until_us DESC"),
    "sheet": Statement("SELECT owner FROM batch_sheets WHERE owner <> '' AND lease_until_us > 0"),
}


class WorkerProcesses:
    """Worker processes on one database; a killed one is replaced."""

    def __init__(self, exit_stack: ExitStack, options: dict[str, Any], count: int = WORKERS) -> None:
        self._exit_stack = exit_stack
        self._options = options
        self._alive = [self._spawn() for _ in range(count)]  # they start together
        for worker in self._alive:
            worker.wait_ready().go()

    def _spawn(self) -> Worker:
        return self._exit_stack.enter_context(Worker("batch_work", number=0, **self._options))

    def kill(self, index: int) -> None:
        replacement = self._spawn()
        self._alive.pop(index).kill()
        self._alive.append(replacement.wait_ready().go())

    def kill_process(self, pid: int) -> bool:
        """Kill the worker with this process id; return false if it is not one of these."""
        for index, worker in enumerate(self._alive):
            if worker.pid == pid:
                self.kill(index)
                return True
        return False

    def replace_dead(self) -> None:
        """Start a worker for each that has ended by itself."""
        for index, worker in reversed(list(enumerate(self._alive))):
            if worker.process.poll() is not None:
                self.kill(index)


@contextmanager
def opened_batches(url: str, sheets: Sheets) -> Iterator[Batches]:
    """Yield batches that run nothing themselves."""
    database = open_database(url)
    try:
        yield Batches(database, sheets, BatchSettings())
    finally:
        database.close()


async def run_with_kills(
    url: str,
    sheets: Sheets,
    kills: int,
    seed: int,
    *,
    trouble: Callable[[], None] = lambda: None,
    **options: Any,
) -> tuple[str, int]:
    """Run a job while workers are killed; once it is complete, return its sheet and number of accounts."""
    rng = random.Random(seed)
    total = ACCOUNTS_PER_KILL * (kills + 1)
    options = {"url": url, "attempts_max": KILLED_ATTEMPTS_MAX, **options}
    with opened_batches(url, sheets) as batches, ExitStack() as exit_stack:
        workers = await asyncio.to_thread(WorkerProcesses, exit_stack, options)
        await add_job(batches, total)
        await wait_stored(batches, rng.randrange(100))
        config = await configure_sheet(batches)
        for _ in range(kills):
            trouble()
            await asyncio.sleep(rng.uniform(0, 0.4))  # sleeps: kills at a random moment
            await asyncio.to_thread(workers.kill, rng.randrange(WORKERS))
        assert (await wait_finished(batches)).succeeded == total
        assert (await wait_backfilled(batches)).backfill_status == "completed"
    return config.spreadsheet_id, total


async def run_and_kill_owners(
    url: str, sheets: Sheets, role: str, kills: int, **options: Any
) -> tuple[str, int]:
    """Run a job and kill whichever worker holds a lease on a chunk, or on the sheet.

    The job goes on by a few accounts at a time, so that it is not over before the last kill.
    """
    total = 1000
    steps = itertools.chain(range(4, total - 100, 4), itertools.repeat(total - 100))
    with opened_batches(url, sheets) as batches, ExitStack() as exit_stack:
        allowed_file = Path(exit_stack.enter_context(TemporaryDirectory())) / "allowed"
        options = {
            "url": url,
            "allowed_file": str(allowed_file),
            "attempts_max": KILLED_ATTEMPTS_MAX,
            **options,
        }
        _write(allowed_file, 0)
        workers = await asyncio.to_thread(WorkerProcesses, exit_stack, options)
        await add_job(batches, total)
        config = await configure_sheet(batches)

        async def is_killed() -> bool:
            _write(allowed_file, next(steps))
            owner = _owner(batches._database, role)
            return owner is not None and await asyncio.to_thread(workers.kill_process, _process_id(owner))

        for _ in range(kills):
            await wait_until(is_killed)
        _write(allowed_file, total)
        assert (await wait_finished(batches)).succeeded == total
        assert (await wait_backfilled(batches)).backfill_status == "completed"
    return config.spreadsheet_id, total


def _write(path: Path, number: int) -> None:
    """Write a number so that no reader sees half of it."""
    written = path.with_suffix(".new")
    written.write_text(str(number), encoding="ascii")
    written.rename(path)


def _owner(database: Database, role: str) -> str | None:
    rows = database.read(_OWNERS[role], {})
    return rows[0][0] if rows else None


def _process_id(owner: str) -> int:
    return int(owner.split("-")[-2])
