"""The work of the processes that run batches until they are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.jobs import wait_for_start
from tests.service.batch.rig import google_sheets, run_batches

from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch import chunk_commands
from comporta.service.batch.local_sheets import LocalSheets

POISON = "poison"


def batch_work(
    number: int,
    url: str,
    *,
    folder: str | None = None,
    endpoint: str | None = None,
    attempts_file: str | None = None,
    allowed_file: str | None = None,
    seconds: float = 0.005,
    attempts_max: int | None = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run batches, with sheets in files or in Google Sheets.

    The message of an account is this process's id. Accounts that start with ``poison`` kill the process;
    ``attempts_file`` then has a line for each of them. Accounts wait until ``allowed_file`` has their number.
    ``attempts_max`` replaces the limit of attempts, for tests that kill processes themselves again and again.
    """
    if attempts_max is not None:
        setattr(chunk_commands, "ACCOUNT_ATTEMPTS_MAX", attempts_max)  # noqa: B010 - it is final
    database = open_database(url)
    if endpoint is not None:
        sheets: Any = google_sheets(GoogleAccount(endpoint=endpoint), database)
    else:
        sheets = LocalSheets(Path(folder or "."))

    async def process(account: str) -> str:
        if account.startswith(POISON):
            _append_line(str(attempts_file), account)
            os.kill(os.getpid(), signal.SIGKILL)
        while allowed_file is not None and _number(account) >= _read_number(allowed_file):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # sleeps: the test allows accounts step by step
        await asyncio.sleep(seconds)  # sleeps: the processor under test takes this long
        return f"{os.getpid()}"

    wait_for_start()

    async def work() -> None:
        async with run_batches(database, sheets, process, **settings or {}):
            await asyncio.Event().wait()

    asyncio.run(work())


def _append_line(path: str, line: str) -> None:
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def _number(account: str) -> int:
    return int(account.rpartition("-")[2])


def _read_number(path: str) -> int:
    return int(Path(path).read_text(encoding="ascii"))


JOBS: dict[str, Callable[..., Any]] = {"batch_work": batch_work}
