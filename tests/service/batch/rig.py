"""Batches without the web: processors, sheets that say no for a while, and waiting for what comes to be."""

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
from comporta.service.batch.local import LocalSheets
from comporta.service.batch.sheets import GoogleSheets, Sheets, patient
from comporta.service.batch.values import COMPLETED, FAILED, Job, SheetConfig
from comporta.settings import BatchSettings
from comporta.testing import SheetsServer

PATIENCE_SECONDS = 120.0
QUICK = {"poll_seconds": 0.05, "lease_seconds": 1.0, "concurrency": 4}
HEADER = ["account", "message"]


def accounts(count: int) -> list[str]:
    return [f"account-{number}" for number in range(count)]


async def greet(account: str) -> str:
    return f"hello {account}"


async def slowly(account: str) -> str:
    await asyncio.sleep(0.005)
    return f"hello {account}"


class Gate:
    """A processor that goes on when it is told to, for so many accounts."""

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
        account, database, None, patient(retries=retries, base=0.01, factor=1.1, jitter=(0, 0.01))
    )


@asynccontextmanager
async def running(
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


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that happens in the background."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await what():  # noqa: ASYNC110 - it happens elsewhere, and nobody tells
            await asyncio.sleep(0.01)


async def added(batches: Batches, count: int, job_id: str = "job") -> Job:
    job = await batches.add("ana", accounts(count), job_id)
    assert job is not None
    return job


async def over(batches: Batches, job_id: str = "job") -> Job:
    """Wait until a job is over, and return it."""

    async def ended() -> bool:
        job = await batches.job(job_id)
        return job is not None and job.status in (COMPLETED, FAILED)

    await until(ended)
    job = await batches.job(job_id)
    assert job is not None
    return job


async def stored(batches: Batches, count: int, job_id: str = "job") -> None:
    """Wait until so many results are stored."""

    async def there() -> bool:
        job = await batches.job(job_id)
        return job is not None and job.succeeded + job.failed >= count

    await until(there)


async def filled(batches: Batches, job_id: str = "job") -> SheetConfig:
    """Wait until a backfill is over, and return the configuration."""

    async def ended() -> bool:
        config = await batches.sheet(job_id)
        return config is not None and config.backfill_status != "pending"

    await until(ended)
    config = await batches.sheet(job_id)
    assert config is not None
    return config


async def configured(batches: Batches, job_id: str = "job") -> SheetConfig:
    done = await batches.configure(job_id, "ana", None)
    assert done is not None
    assert done.backfill_status == "pending"
    return done.config


def in_google(server: SheetsServer, spreadsheet_id: str) -> Counter[str]:
    """Return how often each account is in a sheet."""
    rows = server.rows(spreadsheet_id)
    assert not rows or rows[0] == HEADER
    return Counter(row[0] for row in rows[1:])


def in_file(sheets: LocalSheets, spreadsheet_id: str) -> Counter[str]:
    path = sheets._found(spreadsheet_id)
    assert path is not None
    return of_csv(path)


def of_csv(path: Path) -> Counter[str]:
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines))
    assert rows[0] == HEADER
    assert all(len(row) == 2 for row in rows)
    return Counter(row[0] for row in rows[1:])


def once(count: int) -> Counter[str]:
    return Counter(accounts(count))
