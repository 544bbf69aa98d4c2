"""The work of the processes that run batches until they are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.jobs import wait_for_start
from tests.service.batch.rig import google_sheets, greet_slowly, run_batches

from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local_sheets import LocalSheets


def batch_work(number: int, url: str, *, folder: str | None = None, endpoint: str | None = None) -> None:
    """Run batches, with sheets in files or in Google Sheets."""
    database = open_database(url)
    if endpoint is not None:
        sheets: Any = google_sheets(GoogleAccount(endpoint=endpoint), database)
    else:
        sheets = LocalSheets(Path(folder or "."))
    wait_for_start()

    async def work() -> None:
        async with run_batches(database, sheets, greet_slowly):
            await asyncio.Event().wait()

    asyncio.run(work())


JOBS: dict[str, Callable[..., Any]] = {"batch_work": batch_work}
