"""Batches whose workers are killed again and again: every row is in the sheet once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.service.batch.killing import killed_run
from tests.service.batch.rig import google_sheets, in_file, in_google, once
from tests.service.running import awaited

from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local import LocalSheets
from comporta.service.migrations import MIGRATIONS
from comporta.testing import PostgresServer, SheetsServer

KILLS = 20


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path}/service.db?timeout=30"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        server.command("DROP SCHEMA IF EXISTS soak CASCADE")
        server.command("CREATE SCHEMA soak")
        found = f"{server.schema_url('soak')}&timeout=30"
    database = open_database(found)
    migrate(database, MIGRATIONS)
    database.close()
    return found


@pytest.mark.parametrize("seed", range(2))
@awaited
async def test_kill__twenty_times_with_a_sheet_in_trouble__every_row_is_there_once(
    url: str, seed: int
) -> None:
    with SheetsServer() as google:

        def trouble() -> None:
            google.fail(429, 2, retry_after="0", to="values:batchUpdate")
            google.lose(3, to="values:batchUpdate")

        google.latency = 0.05
        database = open_database(url)
        account = GoogleAccount(endpoint=google.url)
        sheets = google_sheets(account, database)
        sheet, total = await killed_run(url, sheets, KILLS, seed, trouble=trouble, endpoint=google.url)
        database.close()
        account.close()
        assert in_google(google, sheet) == once(total)


@awaited
async def test_kill__twenty_times_with_a_file__every_row_is_there_once(url: str, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    sheet, total = await killed_run(url, sheets, KILLS, 3, folder=str(sheets.folder))
    assert in_file(sheets, sheet) == once(total)
