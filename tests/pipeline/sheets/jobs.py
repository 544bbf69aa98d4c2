"""What worker processes do to a sheet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.processes.jobs import ready, say

from comporta import Retry
from comporta.errors import SinkUnavailableError
from comporta.pipeline.sinks import GoogleAccount, SheetsSink, Spreadsheets
from comporta.testing import ManualClock


def sheet_writes(
    number: int, endpoint: str, spreadsheet: str, database: str, *, keys: int, batch: int
) -> None:
    """Write the same rows as the others, in an order of its own, each batch until it is acknowledged."""
    retry = Retry(20, clock=ManualClock(), budget=None, on=SinkUnavailableError)
    account = GoogleAccount(endpoint=endpoint)
    sink = SheetsSink(spreadsheet, account, database=database, migrate=True)
    names = [f"row-{key}" for key in range(keys)]
    random.Random(number).shuffle(names)
    sink.open()
    ready()
    for start in range(0, keys, batch):
        rows = [{"id": name, "value": len(name)} for name in names[start : start + batch]]
        retry.sync.call(sink.write, rows)
    say(sorted(names))
    sink.close()
    account.close()


def sheet_creates(number: int, endpoint: str, marker: str) -> None:
    """Make the same spreadsheet as the others."""
    account = GoogleAccount(endpoint=endpoint)
    ready()
    say(Spreadsheets(account).create(f"by {number}", marker).id)
    account.close()


JOBS: dict[str, Callable[..., Any]] = {"sheet_creates": sheet_creates, "sheet_writes": sheet_writes}
