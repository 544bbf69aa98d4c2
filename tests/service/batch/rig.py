"""Runs batches without HTTP: processors, sheets, and helpers that wait for progress."""

from __future__ import annotations

import asyncio
import csv
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from comporta.database.base import Database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.batches import Batches
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import COMPLETED, FAILED, BatchJob, SheetConfig
from comporta.service.batch.sheets import GoogleSheets, Sheets, sheet_retry
from comporta.settings import BatchSettings
from comporta.testing import SheetsServer

PATIENCE_SECONDS = 120.0
QUICK = {"poll_seconds": 0.05, "lease_seconds": 1.0, "concurrency": 4}
HEADER = ["account", "message"]


def accounts(count: int) -> list[str]:
    return [f"account-{number}" for number in range(count)]


async def greet(account: str) -> str:
    return f"hello {account}"


async def greet_slowly(account: str) -> str:
    await asyncio.sleep(0.005)  # sleeps: the processor under test takes this long
    return f"hello {account}"


class Gate:
    """A processor that blocks until the test opens it for a number of accounts."""

    def __init__(self, passes: int = 0) -> None:
        self._passes = asyncio.Semaphore(passes)

    def open(self, count: int) -> None:
        for _ in range(count):
            self._passes.release()

    async def __call__(self, account: str) -> str:
        await self._passes.acquire()
        return f"hello {account}"


def google_sheets(account: GoogleAccount, database: Database, retries: int = 20) -> GoogleSheets:
    return GoogleSheets(
        account, database, None, sheet_retry(retries=retries, base=0.01, factor=1.1, jitter=(0, 0.01))
    )


@asynccontextmanager
async def run_batches(
    database: Database,
    sheets: Sheets,
    processor: Any = greet,
    *,
    is_digital: Callable[[str], bool] | None = None,
    closing_seconds: float = 10,
    **settings: Any,
) -> AsyncIterator[Batches]:
    batches = Batches(
        database, sheets, BatchSettings(**QUICK | settings), processor=processor, is_digital=is_digital
    )
    batches.start()
    try:
        yield batches
    finally:
        await batches.aclose(closing_seconds)


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a condition in the background holds."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def wait_polled(batches: Batches, count: int = 3) -> None:
    """Wait until the batches have looked for work ``count`` more times."""
    leases, polls = batches._leases, 0
    poll = leases._poll

    async def counted_poll() -> None:
        nonlocal polls
        await poll()
        polls += 1

    async def polled() -> bool:
        return polls >= count

    leases._poll = counted_poll  # type: ignore[method-assign]
    await wait_until(polled)


async def add_job(batches: Batches, count: int, job_id: str = "job") -> BatchJob:
    job = await batches.add_job("ana", accounts(count), job_id)
    assert job is not None
    return job


async def wait_finished(batches: Batches, job_id: str = "job") -> BatchJob:
    """Wait until a job is finished and return it."""

    async def ended() -> bool:
        job = await batches.read_job(job_id)
        return job is not None and job.status in (COMPLETED, FAILED)

    await wait_until(ended)
    job = await batches.read_job(job_id)
    assert job is not None
    return job


async def wait_stored(batches: Batches, count: int, job_id: str = "job") -> None:
    """Wait until ``count`` results are stored."""

    async def there() -> bool:
        job = await batches.read_job(job_id)
        return job is not None and job.succeeded + job.failed >= count

    await wait_until(there)


async def wait_backfilled(batches: Batches, job_id: str = "job") -> SheetConfig:
    """Wait until a backfill has ended and return the sheet."""

    async def ended() -> bool:
        config = await batches.read_sheet(job_id)
        return config is not None and config.backfill_status != "pending"

    await wait_until(ended)
    config = await batches.read_sheet(job_id)
    assert config is not None
    return config


async def configure_sheet(batches: Batches, job_id: str = "job") -> SheetConfig:
    sheet = await batches.configure_sheet(job_id, "ana", None)
    assert sheet is not None
    assert sheet.backfill_status == "pending"
    return sheet.config


def google_accounts(server: SheetsServer, spreadsheet_id: str) -> Counter[str]:
    """Return how often a sheet has each account."""
    rows = server.rows(spreadsheet_id)
    assert not rows or rows[0] == HEADER
    return Counter(row[0] for row in rows[1:])


def file_accounts(sheets: LocalSheets, spreadsheet_id: str) -> Counter[str]:
    path = sheets._find(spreadsheet_id)
    assert path is not None
    return csv_accounts(path)


def csv_accounts(path: Path) -> Counter[str]:
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    assert rows[0] == HEADER
    assert all(len(row) == 2 for row in rows)
    return Counter(row[0] for row in rows[1:])


def each_once(count: int) -> Counter[str]:
    return Counter(accounts(count))
