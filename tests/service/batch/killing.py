"""Workers that are killed at random moments while a job runs and its sheet is filled: nothing may be lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tests.processes.fleet import Worker
from tests.service.batch.rig import added, configured, filled, over, stored

from comporta.database.urls import open_database
from comporta.service.batch.batches import Batches
from comporta.service.batch.sheets import Sheets
from comporta.settings import BatchSettings

WORKERS = 2
ACCOUNTS_PER_KILL = 200


class Workers:
    """Processes on one database; one that is killed is replaced."""

    def __init__(self, ends: ExitStack, told: dict[str, Any]) -> None:
        self._ends = ends
        self._told = told
        self._alive = [self._spawned() for _ in range(WORKERS)]  # they start together
        for worker in self._alive:
            worker.ready().go()

    def _spawned(self) -> Worker:
        return self._ends.enter_context(Worker("batch_work", number=0, **self._told))

    def kill(self, index: int) -> None:
        next_one = self._spawned()
        self._alive.pop(index).kill()
        self._alive.append(next_one.ready().go())


async def killed_run(
    url: str,
    sheets: Sheets,
    kills: int,
    seed: int,
    *,
    trouble: Callable[[], None] = lambda: None,
    **told: Any,
) -> tuple[str, int]:
    """Run a job while workers are killed; returns its sheet once all is said to be done, and its accounts."""
    drawn = random.Random(seed)
    total = ACCOUNTS_PER_KILL * (kills + 1)
    database = open_database(url)
    asks = Batches(database, sheets, BatchSettings())  # works on nothing itself
    try:
        with ExitStack() as ends:
            workers = await asyncio.to_thread(Workers, ends, {"url": url, **told})
            await added(asks, total)
            await stored(asks, drawn.randrange(100))
            config = await configured(asks)
            for _ in range(kills):
                trouble()
                await asyncio.sleep(drawn.uniform(0, 0.4))
                await asyncio.to_thread(workers.kill, drawn.randrange(WORKERS))
            assert (await over(asks)).succeeded == total
            assert (await filled(asks)).backfill_status == "completed"
    finally:
        database.close()
    return config.spreadsheet_id, total
