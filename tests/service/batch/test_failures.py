"""Batches with faulty processors, lost leases and outages: nothing is lost and nothing hangs."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import (
    Gate,
    add_job,
    configure_sheet,
    each_once,
    file_accounts,
    run_batches,
    wait_backfilled,
    wait_finished,
    wait_stored,
    wait_until,
)
from tests.service.batch.test_batches import FailingDatabase
from tests.service.harness import async_test

from comporta.database.base import Database, Statement
from comporta.errors import DatabaseError, SinkAuthError
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.service.batch.local_sheets import LocalSheet, LocalSheets
from comporta.service.batch.models import COMPLETED, FAILED
from comporta.testing import PostgresServer

EXPIRE = Statement("UPDATE batch_chunks SET lease_until_us = 0")


# -- processors


@async_test
async def test_processor__inner_cancellation__fails_the_account(plain: Database, tmp_path: Path) -> None:
    async def careless(account: str) -> str:
        if account == "account-1":
            inner = asyncio.ensure_future(asyncio.sleep(60))  # sleeps: it is cancelled in the next line
            inner.cancel()
            await inner
        return account

    async with run_batches(plain, LocalSheets(tmp_path), careless) as batches:
        await add_job(batches, 10)
        job = await wait_finished(batches)
    assert (job.succeeded, job.failed) == (9, 1)


class Unspeakable(Exception):  # noqa: N818 - as bad as it gets
    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.parametrize("error", [Unspeakable(), StopIteration(), asyncio.CancelledError()])
@async_test
async def test_processor__blocking_and_raises_awkward_errors__fails_the_account(
    plain: Database, tmp_path: Path, error: BaseException
) -> None:
    def careless(account: str) -> str:
        if account == "account-1":
            raise error
        return account

    async with run_batches(plain, LocalSheets(tmp_path), careless, closing_seconds=0.1) as batches:
        await add_job(batches, 4)
        job = await wait_finished(batches)
    assert (job.succeeded, job.failed) == (3, 1)


@async_test
async def test_processor__service_shuts_down__is_closed_even_if_that_fails(
    plain: Database, tmp_path: Path
) -> None:
    class Holding:
        closed = 0

        async def __call__(self, account: str) -> str:
            return account

        async def aclose(self) -> None:
            self.closed += 1
            raise OSError("gone already")

    holding = Holding()
    async with run_batches(plain, LocalSheets(tmp_path), holding):
        pass
    assert holding.closed == 1


# -- leases


@async_test
async def test_lease__lost_and_claimed_again_by_the_same_worker__job_runs_once(
    plain: Database, tmp_path: Path
) -> None:
    gate = Gate(2)
    sheets = LocalSheets(tmp_path)
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with run_batches(plain, sheets, gate, lease_seconds=6) as batches:
        await add_job(batches, 40)
        config = await configure_sheet(batches)
        await wait_stored(batches, 2)
        await wait_until(lambda: _are_suspects_claimed(plain))
        gate.open(200)
        assert (await wait_finished(batches)).succeeded == 40
        await wait_backfilled(batches)
        await wait_until(lambda: _true(not any(work.tasks for work in batches._turns.chunks)))
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(40)
    assert not failures


async def _are_suspects_claimed(database: Database) -> bool:
    """Expire leases until the accounts of a chunk are claimed one by one."""
    claimed = "SELECT count(*) FROM batch_chunks WHERE attempts = 2"
    if database.read(Statement(claimed), {}) != [(0,)]:
        return True
    database.write((EXPIRE,), {})
    return False


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@async_test
async def test_database__restarted_while_a_job_fills_its_sheet__loses_nothing(
    database: Database, postgres: PostgresServer, tmp_path: Path
) -> None:
    gate, sheets = Gate(60), LocalSheets(tmp_path)
    async with run_batches(database, sheets, gate, lease_seconds=1) as batches:
        await add_job(batches, 300)
        await wait_stored(batches, 60)
        config = await configure_sheet(batches)
        gate.open(100)
        await asyncio.to_thread(postgres.restart)
        gate.open(10_000)  # interrupted calls are retried
        await wait_until(lambda: _answers(database))
        assert (await wait_finished(batches)).succeeded == 300
        assert (await wait_backfilled(batches)).backfill_status == COMPLETED
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(300)


async def _answers(database: Database) -> bool:
    try:
        await database.read_async(Statement("SELECT 1"), {})
    except DatabaseError:
        return False  # a database that is known to be down is not called for a moment
    return True


# -- sheets


@async_test
async def test_sheet__sheet_and_database_both_fail__counts_no_row_as_written(
    plain: Database, tmp_path: Path
) -> None:
    class FromThreads(FailingDatabase):
        read_async = plain.read_async  # only blocking calls fail
        write_async = plain.write_async

    failing: Any = FromThreads(plain)

    class Denied(LocalSheet):
        def write(self, rows: Any) -> None:
            if not failing.denied:
                failing.denied = failing.failures = 1  # recording the failure fails too
                raise SinkAuthError("not you")
            super().write(rows)

    class Sheets(LocalSheets):
        def sink(self, spreadsheet_id: str) -> Any:
            return Denied(super().sink(spreadsheet_id).path)  # type: ignore[attr-defined] # a LocalSheet

    failing.denied = 1
    sheets, gate = Sheets(tmp_path), Gate()
    async with run_batches(failing, sheets, gate, concurrency=64) as batches:
        await add_job(batches, 150)
        config = await configure_sheet(batches)
        await wait_backfilled(batches)
        failing.denied = 0
        gate.open(150)
        await wait_stored(batches, 150)
        await wait_finished(batches)
        if (await wait_backfilled(batches)).backfill_status == FAILED:
            assert await batches.retry_backfill("job")
        assert (await wait_backfilled(batches)).backfill_status == COMPLETED
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(150)


def _rows(sheets: LocalSheets, number: str) -> list[list[str]]:
    path = sheets._find(number)
    assert path is not None
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))


def test_local_sheet__account_named_like_its_column__is_written(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    for _ in range(2):
        sheets.sink(made.id).write([{"account": "account", "message": "hello"}])
    assert _rows(sheets, made.id)[1:] == [["account", "hello"]]


def test_local_sheet__accounts_equal_after_escaping__are_all_written(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    for _ in range(2):
        sheets.sink(made.id).write([{"account": each, "message": "hello"} for each in ("=1", "'=1", "''=1")])
    assert len(_rows(sheets, made.id)) == 4


@pytest.mark.parametrize("account", ["a\nb", "a\r\nb", 'a"b', "a;=b", "\u2028x", "x,y", "a\rb", "\u200b"])
def test_local_sheet__escaped_account_written_again__is_stored_once(tmp_path: Path, account: str) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    for _ in range(2):
        sheets.sink(made.id).write([{"account": account, "message": "hello"}])
    assert len(_rows(sheets, made.id)) == 2


@pytest.mark.parametrize("name", ["\u6f22" * 200, "\U0001f600" * 200, "\u00e9" * 200, "x" * 200])
def test_local_sheets__long_name_in_any_script__has_a_file(tmp_path: Path, name: str) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create(name, "mark")
    sheets.sink(made.id).write([{"account": "a", "message": "hello"}])
    assert len(_rows(sheets, made.id)) == 2


# -- figures


class BrokenMetrics:
    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise ValueError("no room")

    histogram = counter


@async_test
async def test_metrics__jobs_results_backfills_and_rows__are_counted(plain: Database, tmp_path: Path) -> None:
    async def odd(account: str) -> str:
        if account == "account-3":
            raise ValueError
        return await gate(account)

    metrics, gate, sheets = InMemoryMetrics(), Gate(4), LocalSheets(tmp_path)
    before = use_metrics(metrics)
    try:
        async with run_batches(plain, sheets, odd, running_max=1) as batches:
            await add_job(batches, 10)
            assert await batches.add_job("ana", ["a"], "another") is None
            await wait_stored(batches, 5)
            await configure_sheet(batches)
            await wait_backfilled(batches)
            gate.open(10)
            await wait_finished(batches)
        use_metrics(BrokenMetrics())
        async with run_batches(plain, sheets) as batches:
            await add_job(batches, 2, "uncounted")
            await wait_finished(batches, "uncounted")
            await configure_sheet(batches, "uncounted")
            assert (await wait_backfilled(batches, "uncounted")).backfill_status == COMPLETED
    finally:
        use_metrics(before)
    for outcome in ("asked", "refused", "completed"):
        assert metrics.value("batch_jobs", outcome=outcome) == 1
    assert metrics.value("batch_results", outcome="success") == 9
    assert metrics.value("batch_results", outcome="failed") == 1
    assert metrics.value("batch_backfills", outcome="completed") == 1
    assert metrics.value("batch_rows", by="backfill") + metrics.value("batch_rows", by="job") == 9
