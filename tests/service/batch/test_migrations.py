"""The migration of databases in which jobs were run by one worker each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.service.batch.rig import run_batches, wait_finished
from tests.service.harness import async_test

from comporta.database.base import Database, Statement
from comporta.database.migrations import migrate
from comporta.database.urls import open_database
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.migrations import MIGRATIONS

EARLIER = tuple(each for each in MIGRATIONS if each.number != 201)
ADD_JOB = Statement(
    # last_us is a time at which no job has expired yet
    "INSERT INTO batch_jobs (job_id, user_id, digest, status, total, succeeded, created_at_us, last_us)"
    " VALUES (:job_id, 'ana', '', :status, 4, :stored, 1, 1800000000000000)"
)
ADD_RESULTS = Statement(
    "INSERT INTO batch_results (job_id, position, account, outcome, message, processed_at_us)"
    " SELECT CAST(:job_id AS TEXT), CAST(item AS INTEGER), 'account-' || item,"
    " CASE WHEN CAST(item AS INTEGER) <= :stored THEN 'success' END,"
    " CASE WHEN CAST(item AS INTEGER) <= :stored THEN 'hello' END,"
    " CASE WHEN CAST(item AS INTEGER) <= :stored THEN 5 END FROM EACH(:positions) AS listed"
)
ADD_SHEET = Statement(
    "INSERT INTO batch_sheets (job_id, user_id, spreadsheet_id, spreadsheet_url, spreadsheet_name,"
    " created_at_us, boundary_us, backfill_status)"
    " VALUES (:job_id, 'ana', :sheet_id, '', '', 3, 3, :backfill_status)"
)


@pytest.fixture
def empty(empty_database_url: str) -> Iterator[Database]:
    database = open_database(f"{empty_database_url}{'&' if '?' in empty_database_url else '?'}timeout=30")
    yield database
    database.close()


def add_job(database: Database, job_id: str, stored: int, status: str = "running") -> None:
    params = {"job_id": job_id, "stored": stored, "status": status, "positions": '["1", "2", "3", "4"]'}
    database.write((ADD_JOB, ADD_RESULTS), params)


def add_sheet(database: Database, job_id: str, sheet_id: str, backfill_status: str) -> None:
    params = {"job_id": job_id, "sheet_id": sheet_id, "backfill_status": backfill_status}
    database.write((ADD_SHEET,), params)


@async_test
async def test_migrate__jobs_of_an_earlier_version__are_finished(
    empty: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sheets = LocalSheets(tmp_path_factory.mktemp("sheets"))
    migrate(empty, EARLIER)
    add_job(empty, "half", 2)
    add_job(empty, "stored", 4)
    add_job(empty, "unflushed", 4)
    add_sheet(empty, "unflushed", sheets.create("sheet", "unflushed").id, "completed")
    add_job(empty, "denied", 4)
    add_sheet(empty, "denied", "gone", "failed")
    add_job(empty, "over", 4, "completed")
    add_sheet(empty, "over", "gone", "completed")
    assert [each.number for each in migrate(empty, MIGRATIONS)] == [201]
    positions = Statement("SELECT next_position FROM batch_jobs ORDER BY job_id")
    assert [row[0] for row in empty.read(positions, {})] == [5, 3, 5, 5, 5]
    due = Statement("SELECT job_id FROM batch_sheets WHERE due_us IS NOT NULL")
    assert empty.read(due, {}) == [("unflushed",)]
    async with run_batches(empty, sheets) as batches:
        for job_id in ("half", "stored", "unflushed", "denied"):
            assert (await wait_finished(batches, job_id)).succeeded == 4
        config = await batches.read_sheet("unflushed")
    assert config is not None
    assert config.backfill_status == "completed"
    [path] = sheets.directory.glob("*.csv")
    assert path.read_text(encoding="utf-8").count("hello") == 4
