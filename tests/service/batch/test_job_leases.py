"""Leases that another worker takes over, and those that a worker holds when it stops."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import PATIENCE_SECONDS, Gate, add_job, configure_sheet, wait_until
from tests.service.harness import async_test

from comporta import events
from comporta.database.base import Database, Statement
from comporta.service.batch.batches import Batches
from comporta.service.batch.job_leases import LeasedTasks, LeaseManager
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import ChunkLease, PendingWork
from comporta.settings import BatchSettings

TAKE_OVER = {
    "job": Statement("UPDATE batch_chunks SET token = token + 1, owner = 'another'"),
    "sheet": Statement("UPDATE batch_sheets SET token = token + 1, owner = 'another'"),
}


class HangingSheets(LocalSheets):
    """Sheets whose writes hang until they are released."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.writing = threading.Event()
        self.released = threading.Event()

    def sink(self, spreadsheet_id: str) -> Any:
        self.writing.set()
        self.released.wait(PATIENCE_SECONDS)
        return super().sink(spreadsheet_id)


@pytest.mark.parametrize("name", ["job", "sheet"])
@async_test
async def test_lease__taken_over_while_its_task_hangs__cancels_the_task(
    plain: Database, tmp_path: Path, name: str
) -> None:
    sheets = HangingSheets(tmp_path)
    batches = Batches(
        plain, sheets, BatchSettings(poll_seconds=0.05, lease_seconds=0.3, concurrency=2), processor=Gate()
    )
    batches.start()
    try:
        await add_job(batches, 3)
        await configure_sheet(batches)
        works: dict[str, LeasedTasks[Any]] = {"job": batches._turns.jobs, "sheet": batches._sheet_tasks}

        async def both_run() -> bool:
            return all(work.tasks for work in works.values()) and sheets.writing.is_set()

        await wait_until(both_run)
        tasks = {each: next(iter(work.tasks)) for each, work in works.items()}
        plain.write((TAKE_OVER[name],), {})

        async def is_cancelled() -> bool:
            return tasks[name].done()

        await wait_until(is_cancelled)
        other = "sheet" if name == "job" else "job"
        assert not tasks[other].done()
        assert any(event.kind == "batch_lease_lost" for event in events.latest_events())
    finally:
        sheets.released.set()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await batches.aclose(0)
    assert not any(work.tasks or work.held for work in works.values())


async def hang(*_: object) -> None:
    await asyncio.Event().wait()


class SlowClaim:
    """Turns whose claim ends while the worker already cancels its tasks."""

    def __init__(self) -> None:
        self.tasks: LeasedTasks[ChunkLease] = LeasedTasks("chunk", 5)
        self.chunks = (self.tasks,)
        self.claiming = asyncio.Event()
        self.claimed = asyncio.Event()

    def job_ids(self) -> list[str]:
        return []

    async def claim(self, work: PendingWork) -> None:
        self.claiming.set()
        await self.claimed.wait()
        self.tasks.start(hang, lambda: None)

    async def end_slowly(self) -> None:
        try:
            await hang()
        finally:
            self.claimed.set()
            for _ in range(10):
                await asyncio.sleep(0)


@async_test
async def test_stop__claim_in_progress__starts_no_task_that_is_left_running(plain: Database) -> None:
    turns = SlowClaim()
    manager = LeaseManager(
        plain,
        "worker",
        turns,
        LeasedTasks("sheet", 1),
        run_sheet=hang,
        on_change=pytest.fail,
        lease_seconds=60,
        poll_seconds=60,
        retention_seconds=60,
    )
    manager.start()
    turns.tasks.start(turns.end_slowly, lambda: None)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await turns.claiming.wait()
        await manager.stop(0)
    assert not turns.tasks.tasks
