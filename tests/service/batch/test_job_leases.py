"""A lease that another worker took over: the local task is cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import PATIENCE_SECONDS, add_job, configure_sheet, wait_until
from tests.service.harness import async_test

from comporta.database.base import Database, Statement
from comporta.service.batch import commands
from comporta.service.batch.batches import Batches
from comporta.service.batch.job_leases import LeasedWork, LeaseManager
from comporta.service.batch.local_sheets import LocalSheets
from comporta.settings import BatchSettings

TAKE_OVER = {
    "job": Statement("UPDATE batch_jobs SET token = token + 1, owner = 'another'"),
    "backfill": Statement("UPDATE batch_sheets SET token = token + 1, owner = 'another'"),
}


class Hanging:
    """Work that never ends by itself; it records which leases it runs under and which were cancelled."""

    def __init__(self) -> None:
        self.running: list[Any] = []
        self.cancelled: list[Any] = []

    async def __call__(self, lease: Any) -> bool:
        self.running.append(lease)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append(lease)
            raise
        return True


async def add_work(database: Database, folder: Path) -> None:
    """Add a job with a pending backfill that no worker has claimed."""
    batches = Batches(database, LocalSheets(folder), BatchSettings(poll_seconds=0.05, lease_seconds=1.0))
    await add_job(batches, 3)
    await configure_sheet(batches)
    await batches.aclose(0)


@pytest.mark.parametrize("name", ["job", "backfill"])
@async_test
async def test_lease__taken_over_while_its_task_hangs__cancels_the_task(
    plain: Database, tmp_path: Path, name: str
) -> None:
    await add_work(plain, tmp_path)
    hanging = {"job": Hanging(), "backfill": Hanging()}
    jobs = LeasedWork("job", 1, commands.claim_job, commands.release_job, hanging["job"])
    backfills = LeasedWork(
        "backfill", 1, commands.claim_backfill, commands.release_backfill, hanging["backfill"]
    )
    manager = LeaseManager(
        plain, "this-1-a", jobs, backfills, lease_seconds=0.3, poll_seconds=0.05, retention_seconds=3600
    )
    manager.start()
    try:

        async def both_run() -> bool:
            return all(work.running for work in hanging.values())

        async def lost() -> bool:
            return bool(hanging[name].cancelled)

        await wait_until(both_run)
        other = "backfill" if name == "job" else "job"
        first = hanging[name].running[0]
        plain.write((TAKE_OVER[name],), {})
        await wait_until(lost)
        assert hanging[name].cancelled[0] == first
        assert hanging[other].cancelled == []
    finally:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await manager.stop(0)
    assert not jobs.tasks
    assert not backfills.tasks
