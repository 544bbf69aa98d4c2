"""What worker processes do for batches, until they are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.jobs import ready
from tests.service.batch.rig import google_sheets, running, slowly

from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local import LocalSheets


def batch_work(number: int, url: str, *, folder: str | None = None, endpoint: str | None = None) -> None:
    """Do what there is to do, in a file or in a sheet of Google's."""
    database = open_database(url)
    if endpoint is not None:
        sheets: Any = google_sheets(GoogleAccount(endpoint=endpoint), database)
    else:
        sheets = LocalSheets(Path(folder or "."))
    ready()

    async def work() -> None:
        async with running(database, sheets, slowly):
            await asyncio.Event().wait()

    asyncio.run(work())


JOBS: dict[str, Callable[..., Any]] = {"batch_work": batch_work}
