"""Workers that are killed: another continues the job, and its sheet has every row once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.batch.kills import run_with_kills
from tests.service.batch.rig import each_once, file_accounts, google_accounts, google_sheets
from tests.service.harness import async_test

from comporta.database.base import Database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local_sheets import LocalSheets
from comporta.testing import SheetsServer

KILLS = 2


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@async_test
async def test_kill__while_a_google_sheet_is_filled__has_every_row_once(
    url: str, database: Database, google: SheetsServer, account: GoogleAccount
) -> None:
    def trouble() -> None:
        google.fail(429, 1, retry_after="0", matching="values:batchUpdate")
        google.lose_responses(2, matching="values:batchUpdate")

    google.latency = 0.02
    sheets = google_sheets(account, database)
    sheet, total = await run_with_kills(url, sheets, KILLS, 1, trouble=trouble, endpoint=google.url)
    assert google_accounts(google, sheet) == each_once(total)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@async_test
async def test_kill__while_a_file_is_filled__has_every_row_once(url: str, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    sheet, total = await run_with_kills(url, sheets, KILLS, 2, folder=str(sheets.directory))
    assert file_accounts(sheets, sheet) == each_once(total)
