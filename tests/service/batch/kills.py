"""Runs a job while its workers are killed at random moments; nothing may be lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.processes.fleet import Worker
from tests.service.batch.rig import add_job, configure_sheet, wait_backfilled, wait_finished, wait_stored

from comporta.database.urls import open_database
from comporta.service.batch.batches import Batches
from comporta.service.batch.sheets import Sheets
from comporta.settings import BatchSettings

WORKERS = 2
ACCOUNTS_PER_KILL = 200


class WorkerProcesses:
    """Worker processes on one database; a killed one is replaced."""

    def __init__(self, exit_stack: ExitStack, options: dict[str, Any]) -> None:
        self._exit_stack = exit_stack
        self._options = options
        self._alive = [self._spawn() for _ in range(WORKERS)]  # they start together
        for worker in self._alive:
            worker.wait_ready().go()

    def _spawn(self) -> Worker:
        return self._exit_stack.enter_context(Worker("batch_work", number=0, **self._options))

    def kill(self, index: int) -> None:
        replacement = self._spawn()
        self._alive.pop(index).kill()
        self._alive.append(replacement.wait_ready().go())


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
    database = open_database(url)
    batches = Batches(database, sheets, BatchSettings())  # not started: it runs nothing itself
    try:
        with ExitStack() as exit_stack:
            workers = await asyncio.to_thread(WorkerProcesses, exit_stack, {"url": url, **options})
            await add_job(batches, total)
            await wait_stored(batches, rng.randrange(100))
            config = await configure_sheet(batches)
            for _ in range(kills):
                trouble()
                await asyncio.sleep(rng.uniform(0, 0.4))  # sleeps: kills at a random moment
                await asyncio.to_thread(workers.kill, rng.randrange(WORKERS))
            assert (await wait_finished(batches)).succeeded == total
            assert (await wait_backfilled(batches)).backfill_status == "completed"
    finally:
        database.close()
    return config.spreadsheet_id, total
