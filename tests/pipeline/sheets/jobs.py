"""Jobs of worker processes that write to a sheet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.processes.jobs import send_result, wait_for_start

from comporta import Retry
from comporta.errors import SinkUnavailableError
from comporta.pipeline.sinks import GoogleAccount, SheetsSink, Spreadsheets
from comporta.testing import ManualClock


def sheet_writes(
    number: int, endpoint: str, spreadsheet: str, database: str, *, keys: int, batch: int
) -> None:
    """Write the same rows as the other workers, in another order, each batch until it is confirmed."""
    retry = Retry(20, clock=ManualClock(), budget=None, on=SinkUnavailableError)
    account = GoogleAccount(endpoint=endpoint)
    sink = SheetsSink(spreadsheet, account, database=database, migrate=True)
    names = [f"row-{key}" for key in range(keys)]
    random.Random(number).shuffle(names)
    sink.open()
    wait_for_start()
    for start in range(0, keys, batch):
        rows = [{"id": name, "value": len(name)} for name in names[start : start + batch]]
        retry.sync.call(sink.write, rows)
    send_result(sorted(names))
    sink.close()
    account.close()


def sheet_creates(number: int, endpoint: str, marker: str) -> None:
    """Create the same spreadsheet as the other workers."""
    account = GoogleAccount(endpoint=endpoint)
    wait_for_start()
    send_result(Spreadsheets(account).create(f"by {number}", marker).id)
    account.close()


JOBS: dict[str, Callable[..., Any]] = {"sheet_creates": sheet_creates, "sheet_writes": sheet_writes}
