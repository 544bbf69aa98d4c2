"""Processes that die: another goes on with the job and its sheet, and every row is there once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.batch.killing import killed_run
from tests.service.batch.rig import google_sheets, in_file, in_google, once
from tests.service.running import awaited

from comporta.database.base import Database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local import LocalSheets
from comporta.testing import SheetsServer

KILLS = 2


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@awaited
async def test_kill__while_a_sheet_of_googles_is_filled__every_row_is_there_once(
    url: str, database: Database, google: SheetsServer, account: GoogleAccount
) -> None:
    def trouble() -> None:
        google.fail(429, 1, retry_after="0", to="values:batchUpdate")
        google.lose(2, to="values:batchUpdate")

    google.latency = 0.02
    sheets = google_sheets(account, database)
    sheet, total = await killed_run(url, sheets, KILLS, 1, trouble=trouble, endpoint=google.url)
    assert in_google(google, sheet) == once(total)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@awaited
async def test_kill__while_a_file_is_filled__every_row_is_there_once(url: str, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    sheet, total = await killed_run(url, sheets, KILLS, 2, folder=str(sheets.folder))
    assert in_file(sheets, sheet) == once(total)
