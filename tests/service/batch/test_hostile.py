"""What strangers, careless processors and bad days do to batches: nothing is lost, nobody waits for ever."""

from __future__ import annotations

import asyncio
import csv
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import (
    Gate,
    added,
    configured,
    filled,
    in_file,
    once,
    over,
    running,
    stored,
    until,
)
from tests.service.batch.test_batches import Failing
from tests.service.running import awaited

from comporta.database.base import Database, Statement
from comporta.errors import DatabaseError, SinkDeniedError
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.service.batch import requests
from comporta.service.batch import running as running_module
from comporta.service.batch.local import LocalSheet, LocalSheets
from comporta.service.batch.values import COMPLETED, FAILED, HeldJob
from comporta.testing import PostgresServer

EXPIRE = Statement("UPDATE batch_jobs SET lease_until_us = 0 WHERE status = 'running'")


def _writers() -> int:
    return sum(each.name == "comporta-writer" for each in threading.enumerate())


# -- processors


@awaited
async def test_processor__something_in_it_was_cancelled__is_the_accounts_failure(
    plain: Database, tmp_path: Path
) -> None:
    async def careless(account: str) -> str:
        if account == "account-1":
            inner = asyncio.ensure_future(asyncio.sleep(60))
            inner.cancel()
            await inner
        return account

    async with running(plain, LocalSheets(tmp_path), careless) as batches:
        await added(batches, 10)
        job = await over(batches)
    assert (job.succeeded, job.failed) == (9, 1)


class Unspeakable(Exception):  # noqa: N818 - as bad as it gets
    def __str__(self) -> str:
        raise ValueError("not even this")


@pytest.mark.parametrize("error", [Unspeakable(), StopIteration(), asyncio.CancelledError()])
@awaited
async def test_processor__blocking_and_raises_what_is_hard_to_pass_on__is_the_accounts_failure(
    plain: Database, tmp_path: Path, error: BaseException
) -> None:
    def careless(account: str) -> str:
        if account == "account-1":
            raise error
        return account

    async with running(plain, LocalSheets(tmp_path), careless, closing_seconds=0.1) as batches:
        await added(batches, 4)
        job = await over(batches)
    assert (job.succeeded, job.failed) == (3, 1)


@awaited
async def test_processor__service_ends__is_closed_whatever_comes_of_it(
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
    async with running(plain, LocalSheets(tmp_path), holding):
        pass
    assert holding.closed == 1


# -- leases


@awaited
async def test_lease__lost_and_taken_again_by_the_same_worker__the_job_is_done_once(
    plain: Database, tmp_path: Path
) -> None:
    gate = Gate(2)
    sheets = LocalSheets(tmp_path)
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: failures.append(told))
    async with running(plain, sheets, gate, lease_seconds=0.6) as batches:
        await added(batches, 40)
        config = await configured(batches)
        await stored(batches, 2)
        for _ in range(3):
            await until(_is_taken_again(plain))
        gate.open(200)
        assert (await over(batches)).succeeded == 40
        await filled(batches)
        await until(lambda: _true(not batches._taking._jobs.tasks))
    assert in_file(sheets, config.spreadsheet_id) == once(40)
    assert not failures


def _is_taken_again(database: Database) -> Callable[[], Awaitable[bool]]:
    """Return what ends a lease, until somebody has a new one."""

    def token() -> int:
        return int(database.read(Statement("SELECT token FROM batch_jobs"), {})[0][0])

    before = token()

    async def ended() -> bool:
        database.write((EXPIRE,), {})
        return token() > before

    return ended


@awaited
async def test_lease__lost_while_a_sheet_is_filled__no_writer_stays_behind(
    plain: Database, tmp_path: Path
) -> None:
    before = _writers()
    gate, sheets = Gate(), LocalSheets(tmp_path)
    async with running(plain, sheets, gate) as batches:
        await added(batches, 40)
        await configured(batches)
        await filled(batches)
        gate.open(5)
        await stored(batches, 5)
        await until(lambda: _true(_writers() > before))
        plain.write((Statement("UPDATE batch_jobs SET token = token + 1, lease_until_us = 0"),), {})
        gate.open(200)
        assert (await over(batches)).succeeded == 40
    await until(lambda: _true(_writers() <= before))


async def _true(value: bool) -> bool:
    return value


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@awaited
async def test_database__restarted_while_a_job_runs_and_its_sheet_is_filled__nothing_is_lost(
    database: Database, postgres: PostgresServer, tmp_path: Path
) -> None:
    gate, sheets = Gate(60), LocalSheets(tmp_path)
    async with running(database, sheets, gate, lease_seconds=1) as batches:
        await added(batches, 300)
        await stored(batches, 60)
        config = await configured(batches)
        gate.open(100)
        await asyncio.to_thread(postgres.restart)
        gate.open(10_000)  # what was lost on the way is asked for again
        await until(lambda: _answers(database))
        assert (await over(batches)).succeeded == 300
        assert (await filled(batches)).backfill_status == COMPLETED
    assert in_file(sheets, config.spreadsheet_id) == once(300)


async def _answers(database: Database) -> bool:
    try:
        await database.read_async(Statement("SELECT 1"), {})
    except DatabaseError:
        return False  # what is known to be away is not asked for a moment
    return True


# -- sheets


@awaited
async def test_filling__sheet_says_no_and_the_database_is_away__no_row_is_taken_for_written(
    plain: Database, tmp_path: Path
) -> None:
    class FromThreads(Failing):
        read_async = plain.read_async  # only what blocks fails
        write_async = plain.write_async

    failing: Any = FromThreads(plain)

    class Denied(LocalSheet):
        def write(self, rows: Any) -> None:
            if not failing.denied:
                failing.denied = failing.failures = 1  # what would be noted of it is lost
                raise SinkDeniedError("not you")
            super().write(rows)

    class Sheets(LocalSheets):
        def sink(self, spreadsheet_id: str) -> Any:
            return Denied(super().sink(spreadsheet_id).path)  # type: ignore[attr-defined] # a file's

    failing.denied = 1
    sheets, gate = Sheets(tmp_path), Gate()
    async with running(failing, sheets, gate, concurrency=64) as batches:
        await added(batches, 150)
        config = await configured(batches)
        await filled(batches)
        failing.denied = 0
        gate.open(150)
        await stored(batches, 150)
        await over(batches)
        if (await filled(batches)).backfill_status == FAILED:
            assert await batches.retry_backfill("job")
        assert (await filled(batches)).backfill_status == COMPLETED
    assert in_file(sheets, config.spreadsheet_id) == once(150)


def _rows(sheets: LocalSheets, number: str) -> list[list[str]]:
    path = sheets._found(number)
    assert path is not None
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.reader(lines))


def test_local__account_called_as_its_column__is_written(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    for _ in range(2):
        sheets.sink(made.id).write([{"account": "account", "message": "hello"}])
    assert _rows(sheets, made.id)[1:] == [["account", "hello"]]


def test_local__accounts_that_a_guard_makes_alike__are_all_written(tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    for _ in range(2):
        sheets.sink(made.id).write([{"account": each, "message": "hello"} for each in ("=1", "'=1", "''=1")])
    assert len(_rows(sheets, made.id)) == 4


@pytest.mark.parametrize("account", ["a\nb", "a\r\nb", 'a"b', "a;=b", "\u2028x", "x,y", "a\rb", "\u200b"])
def test_local__odd_account_written_again__is_there_once(tmp_path: Path, account: str) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create("x", "mark")
    for _ in range(2):
        sheets.sink(made.id).write([{"account": account, "message": "hello"}])
    assert len(_rows(sheets, made.id)) == 2


@pytest.mark.parametrize("name", ["\u6f22" * 200, "\U0001f600" * 200, "\u00e9" * 200, "x" * 200])
def test_local__long_name_in_any_script__has_a_file(tmp_path: Path, name: str) -> None:
    sheets = LocalSheets(tmp_path)
    made = sheets.create(name, "mark")
    sheets.sink(made.id).write([{"account": "a", "message": "hello"}])
    assert len(_rows(sheets, made.id)) == 2


# -- figures


class BrokenMetrics:
    def counter(self, name: str, value: float, /, **labels: str) -> None:
        raise ValueError("no room")

    histogram = counter


@awaited
async def test_figures__jobs_results_backfills_and_rows__are_counted(plain: Database, tmp_path: Path) -> None:
    async def odd(account: str) -> str:
        if account == "account-3":
            raise ValueError
        return await gate(account)

    metrics, gate, sheets = InMemoryMetrics(), Gate(4), LocalSheets(tmp_path)
    before = use_metrics(metrics)
    try:
        async with running(plain, sheets, odd, running_max=1) as batches:
            await added(batches, 10)
            assert await batches.add("ana", ["a"], "another") is None
            await stored(batches, 5)
            await configured(batches)
            await filled(batches)
            gate.open(10)
            await over(batches)
        use_metrics(BrokenMetrics())
        async with running(plain, sheets) as batches:
            await added(batches, 2, "uncounted")
            await over(batches, "uncounted")
            await configured(batches, "uncounted")
            assert (await filled(batches, "uncounted")).backfill_status == COMPLETED
    finally:
        use_metrics(before)
    for outcome in ("asked", "refused", "completed"):
        assert metrics.value("batch_jobs", outcome=outcome) == 1
    assert metrics.value("batch_results", outcome="success") == 9
    assert metrics.value("batch_results", outcome="failed") == 1
    assert metrics.value("batch_backfills", outcome="completed") == 1
    assert metrics.value("batch_rows", by="backfill") + metrics.value("batch_rows", by="job") == 9


@awaited
async def test_job__ended_by_another_while_its_last_rows_are_written__is_not_counted(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a worker that took it over, and was quicker."""
    ended = Statement("UPDATE batch_jobs SET status = 'completed', finished_at_us = 1, lease_until_us = 0")

    finish, told = requests.finish, []

    def too_late(held: HeldJob, status: str) -> Any:
        plain.write((ended,), {})
        told.append(status)
        return finish(held, status)

    monkeypatch.setattr(running_module, "finish", too_late)
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        async with running(plain, LocalSheets(tmp_path)) as batches:
            await added(batches, 3)
            assert (await over(batches)).succeeded == 3
            await until(lambda: _true(not batches._taking._jobs.tasks))
    finally:
        use_metrics(before)
    assert told == [COMPLETED]
    assert metrics.value("batch_jobs", outcome=COMPLETED) == 0
