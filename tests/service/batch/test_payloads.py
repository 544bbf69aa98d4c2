"""A hundred formulas and forged lines, as accounts and messages, through the whole path: none has effect."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook
from tests.service.batch.payloads import PAYLOADS
from tests.service.batch.rig import configured, filled, google_sheets, over
from tests.service.batch.test_routes import running, streamed
from tests.service.running import awaited

from comporta.database.base import Database
from comporta.pipeline.cells import guarded
from comporta.pipeline.sinks import GoogleAccount, XlsxSink
from comporta.service.batch.filling import rows_of
from comporta.service.batch.local import LocalSheets
from comporta.service.batch.values import START
from comporta.testing import SheetsServer

COUNT = 100


async def echo(account: str) -> str:
    """Give back what came in, or fail with it: both are told to people."""
    if "forged" in account:
        raise ValueError(account)
    return account


async def _done(folder: Path, sheets: Any) -> tuple[str, list[Any]]:
    """Send them all through the service, have a sheet filled, and return its id and the results."""
    async with running(folder, echo, sheets) as asked:
        lines = await streamed(asked, accounts=PAYLOADS, job_id="job")
        assert len(lines) == COUNT + 2
        await over(asked.parts.batches)
        config = await configured(asked.parts.batches)
        assert (await filled(asked.parts.batches)).backfill_status == "completed"
        return config.spreadsheet_id, await asked.parts.batches.results("job", START, 1000)


def test_payloads__are_a_hundred() -> None:
    assert len({each.strip() for each in PAYLOADS}) == COUNT


@awaited
async def test_payloads__in_a_file_and_a_workbook__are_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sheets = LocalSheets(tmp_path / "sheets")
    number, results = await _done(tmp_path, sheets)
    path = sheets._found(number)
    assert path is not None
    with path.open(encoding="utf-8", newline="") as lines:
        written = list(csv.reader(lines))[1:]
    rows = rows_of(results)
    assert len(written) == len(rows) > 80
    assert all(guarded(cell) == cell for row in written for cell in row)
    workbook = XlsxSink(tmp_path / "x.xlsx", ("account", "message"))
    workbook.open()
    workbook.write(rows)
    workbook.close()
    cells = [cell for row in load_workbook(tmp_path / "x.xlsx").active.iter_rows(min_row=2) for cell in row]
    assert len(cells) == 2 * len(rows)
    assert {cell.data_type for cell in cells} == {"s"}
    assert not any("\n" in record.getMessage() or "\x1b" in record.getMessage() for record in caplog.records)


@awaited
async def test_payloads__in_a_sheet_of_googles__are_text(
    plain: Database, tmp_path: Path, google: SheetsServer, account: GoogleAccount
) -> None:
    number, results = await _done(tmp_path, google_sheets(account, plain))
    assert len(google.rows(number)) == len(rows_of(results)) + 1
    assert google.formulas(number) == []
