"""A hundred formulas and forged lines as accounts and messages, end to end: none has an effect."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook
from tests.service.batch.payloads import PAYLOADS
from tests.service.batch.rig import configure_sheet, google_sheets, wait_backfilled, wait_finished
from tests.service.batch.test_routes import run_batch_service, stream_job
from tests.service.harness import async_test

from comporta.database.base import Database
from comporta.pipeline.sinks import GoogleAccount, XlsxSink
from comporta.pipeline.sinks.formula_escaping import csv_cell
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import FIRST_CURSOR
from comporta.service.batch.sheet_turn import sheet_rows
from comporta.testing import SheetsServer

COUNT = 100


async def echo(account: str) -> str:
    """Return the account, or fail with it: both reach people."""
    if "forged" in account:
        raise ValueError(account)
    return account


async def _process_payloads(folder: Path, sheets: Any) -> tuple[str, list[Any]]:
    """Process all payloads through the service into a sheet; return its id and the results."""
    async with run_batch_service(folder, echo, sheets) as service:
        lines = await stream_job(service, accounts=PAYLOADS, job_id="job")
        assert len(lines) == COUNT + 2
        await wait_finished(service.container.batches)
        config = await configure_sheet(service.container.batches)
        assert (await wait_backfilled(service.container.batches)).backfill_status == "completed"
        return config.spreadsheet_id, await service.container.batches.read_results("job", FIRST_CURSOR, 1000)


def test_payloads__list__has_a_hundred() -> None:
    assert len({each.strip() for each in PAYLOADS}) == COUNT


@async_test
async def test_payloads__in_a_file_and_a_workbook__are_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sheets = LocalSheets(tmp_path / "sheets")
    number, results = await _process_payloads(tmp_path, sheets)
    path = sheets._find(number)
    assert path is not None
    with path.open(encoding="utf-8", newline="") as lines:
        written = list(csv.reader(lines))[1:]
    rows = sheet_rows(results)
    assert len(written) == len(rows) > 80
    assert all(csv_cell(cell) == cell for row in written for cell in row)
    workbook = XlsxSink(tmp_path / "x.xlsx", ("account", "message"))
    workbook.open()
    workbook.write(rows)
    workbook.close()
    cells = [cell for row in load_workbook(tmp_path / "x.xlsx").active.iter_rows(min_row=2) for cell in row]
    assert len(cells) == 2 * len(rows)
    assert {cell.data_type for cell in cells} == {"s"}
    assert not any("\n" in record.getMessage() or "\x1b" in record.getMessage() for record in caplog.records)


@async_test
async def test_payloads__in_a_google_sheet__are_text(
    plain: Database, tmp_path: Path, google: SheetsServer, account: GoogleAccount
) -> None:
    number, results = await _process_payloads(tmp_path, google_sheets(account, plain))
    assert len(google.rows(number)) == len(sheet_rows(results)) + 1
    assert google.formulas(number) == []
