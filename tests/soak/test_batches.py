"""Batches whose workers are killed repeatedly: every row is in the sheet once."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.batch_workers import RATIO_MAX, WORKERS, measure_job
from tests.service.batch.kills import run_with_kills
from tests.service.batch.rig import each_once, file_accounts, google_accounts, google_sheets
from tests.service.harness import async_test

from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.migrations import MIGRATIONS
from comporta.testing import PostgresServer, SheetsServer

KILLS = 20


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        database_url = f"sqlite:///{tmp_path}/service.db?timeout=30"
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        server.command("DROP SCHEMA IF EXISTS soak CASCADE")
        server.command("CREATE SCHEMA soak")
        database_url = f"{server.schema_url('soak')}&timeout=30"
    database = open_database(database_url)
    migrate(database, MIGRATIONS)
    database.close()
    return database_url


@pytest.mark.parametrize("seed", range(2))
@async_test
async def test_kill__twenty_times_with_a_failing_sheet__writes_every_row_once(url: str, seed: int) -> None:
    with SheetsServer() as google:

        def inject_faults() -> None:
            google.fail(429, 2, retry_after="0", matching="values:batchUpdate")
            google.lose_responses(3, matching="values:batchUpdate")

        google.latency = 0.05
        database = open_database(url)
        account = GoogleAccount(endpoint=google.url)
        sheets = google_sheets(account, database)
        sheet, total = await run_with_kills(
            url, sheets, KILLS, seed, trouble=inject_faults, endpoint=google.url
        )
        database.close()
        account.close()
        assert google_accounts(google, sheet) == each_once(total)


@async_test
async def test_kill__twenty_times_with_a_file__writes_every_row_once(url: str, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path / "sheets")
    sheet, total = await run_with_kills(url, sheets, KILLS, 3, folder=str(sheets.directory))
    assert file_accounts(sheets, sheet) == each_once(total)


def test_job__of_100000_accounts_with_four_workers__takes_0_3_times_the_time_of_one(
    tmp_path: Path,
) -> None:
    one, four = (
        measure_job(f"sqlite:///{tmp_path}/{count}.db?timeout=30", count, 100_000) for count in (1, WORKERS)
    )
    assert four <= RATIO_MAX * one
