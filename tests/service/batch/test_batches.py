"""Jobs and their sheets, from the first account to the last row, with whatever may go wrong on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.service.batch.rig import (
    Gate,
    accounts,
    added,
    configured,
    filled,
    google_sheets,
    greet,
    in_file,
    in_google,
    once,
    over,
    running,
    slowly,
    stored,
    until,
)
from tests.service.running import awaited
from tests.support import Late

from comporta import events
from comporta.database.base import Database, Statement
from comporta.errors import DatabaseUnavailableError
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch import batches as faces
from comporta.service.batch import local, taking
from comporta.service.batch import running as runs
from comporta.service.batch.backfill import Backfill
from comporta.service.batch.batches import Batches
from comporta.service.batch.filling import Filling
from comporta.service.batch.local import LocalSheet, LocalSheets
from comporta.service.batch.requests import ask, claim_backfill, claim_job
from comporta.service.batch.values import (
    COMPLETED,
    FAILED,
    START,
    HeldJob,
    Job,
    Result,
    SheetConfig,
    Target,
)
from comporta.testing import SheetsServer


async def followed(batches: Batches, job_id: str = "job") -> list[Result | Job]:
    found: list[Result | Job] = []
    async for told in batches.follow(job_id, asyncio.Event()):
        found += [told] if isinstance(told, Job) else told
    return found


@awaited
async def test_job__run__every_account_has_its_result(database: Database, tmp_path: Path) -> None:
    async def odd(account: str) -> str:
        if account.endswith("7"):
            raise ValueError(f"not {account}\n\0")
        return f" hello\t{account}\0 "

    async with running(database, LocalSheets(tmp_path), odd) as batches:
        await added(batches, 100)
        told = await followed(batches)
    job = told.pop()
    assert isinstance(job, Job)
    assert (job.status, job.total, job.succeeded, job.failed) == (COMPLETED, 100, 90, 10)
    results = {each.account: each for each in told if isinstance(each, Result)}
    assert list(results) != []
    assert set(results) == set(accounts(100))
    assert (results["account-1"].outcome, results["account-1"].message) == ("success", "hello account-1")
    assert results["account-7"].message == "ValueError: not account-7"


@awaited
async def test_job__processor_that_blocks__has_threads_of_its_own(plain: Database, tmp_path: Path) -> None:
    def where(account: str) -> str:
        time.sleep(0.001)
        return threading.current_thread().name

    async with running(plain, LocalSheets(tmp_path), where) as batches:
        await added(batches, 20)
        told = await followed(batches)
    assert {each.message for each in told if isinstance(each, Result)} == {"comporta-processor"}


@awaited
async def test_job__account_twice__is_done_once(plain: Database, tmp_path: Path) -> None:
    async with running(plain, LocalSheets(tmp_path)) as batches:
        job = await batches.add("ana", ["a", "b", "a"])
        assert job is not None
        assert job.total == 2
        assert (await over(batches, job.job_id)).succeeded == 2


@awaited
async def test_job__nobody_can_process__waits(plain: Database, tmp_path: Path) -> None:
    async with running(plain, LocalSheets(tmp_path), None) as batches:
        assert not batches.can_process
        await added(batches, 1)
        await asyncio.sleep(0.2)
        job = await batches.job("job")
        assert job is not None
        assert job.status == "running"
    async with running(plain, LocalSheets(tmp_path)) as batches:
        assert (await over(batches)).succeeded == 1


@awaited
async def test_job__more_than_may_run_at_once__wait_in_the_database(plain: Database, tmp_path: Path) -> None:
    gate = Gate()
    async with running(plain, LocalSheets(tmp_path), gate, jobs_max=1) as batches:
        await added(batches, 2, "one")
        await until(lambda: _is_claimed(plain, "one"))
        await added(batches, 2, "two")
        await asyncio.sleep(0.2)
        assert not await _is_claimed(plain, "two")
        gate.open(4)
        assert (await over(batches, "two")).succeeded == 2


async def _is_claimed(database: Database, job_id: str) -> bool:
    found = database.read(
        Statement("SELECT token FROM batch_jobs WHERE job_id = :job_id"), {"job_id": job_id}
    )
    return bool(found[0][0])


@awaited
async def test_follow__job_of_another_worker__is_seen_to_its_end(database: Database, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    async with running(database, sheets, slowly) as runs, running(database, sheets, None) as follows:
        await added(runs, 60)
        told = await followed(follows)
    assert len(told) == 61
    assert isinstance(told[-1], Job)


@awaited
async def test_follow__worker_ends__the_stream_ends(plain: Database, tmp_path: Path) -> None:
    leaving = asyncio.Event()
    async with running(plain, LocalSheets(tmp_path), Gate(3), closing_seconds=0.1) as batches:
        await added(batches, 10)
        found: list[Any] = []
        async for told in batches.follow("job", leaving):
            found += told
            if len(found) == 3:
                leaving.set()
        assert len(found) == 3
        assert [each async for each in batches.follow("no-such-job", asyncio.Event())] == []


@awaited
async def test_stop__job_under_way__is_flushed_and_goes_on_elsewhere_at_once(
    database: Database, tmp_path: Path
) -> None:
    sheets = LocalSheets(tmp_path)
    async with running(database, sheets, slowly, lease_seconds=600) as first:
        await added(first, 300)
        config = await configured(first)
        await stored(first, 20)
    done = sum(in_file(sheets, config.spreadsheet_id).values())
    assert done >= 20
    async with running(database, sheets, greet, lease_seconds=600) as second:
        assert (await over(second)).succeeded == 300
        await filled(second)
    assert in_file(sheets, config.spreadsheet_id) == once(300)


@awaited
async def test_stop__processor_that_does_not_end__is_given_up_and_the_job_given_back(
    plain: Database, tmp_path: Path
) -> None:
    sheets = LocalSheets(tmp_path)
    batches = Batches(plain, sheets, _settings(lease_seconds=600), processor=Gate())
    batches.start()
    await added(batches, 3)
    await until(lambda: _is_claimed(plain, "job"))
    await batches.aclose(0.05)
    async with running(plain, sheets, lease_seconds=600) as second:
        assert (await over(second)).succeeded == 3


def _settings(**told: Any) -> Any:
    from comporta.settings import BatchSettings  # noqa: PLC0415 - see rig

    return BatchSettings(**{"poll_seconds": 0.05, "concurrency": 4, **told})


@awaited
async def test_sheet__configured_after_the_job__backfill_writes_all(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with running(database, google_sheets(account, database)) as batches:
        await added(batches, 2500)
        await over(batches)
        config = await configured(batches)
        assert config.spreadsheet_name == "Ultra batch job"
        done = await filled(batches)
    assert (done.backfill_status, done.backfilled_rows) == (COMPLETED, 2500)
    assert in_google(google, config.spreadsheet_id) == once(2500)


@awaited
async def test_sheet__configured_while_the_job_runs__every_row_is_there_once(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with running(database, google_sheets(account, database), slowly) as batches:
        await added(batches, 400)
        await stored(batches, 30)
        google.fail(429, 3, retry_after="0", to="values:batchUpdate")
        google.lose(3, to="values:batchUpdate")
        config = await configured(batches)
        await stored(batches, 200)
        google.lose(2, reset=True, to="values:batchUpdate")
        assert (await over(batches)).succeeded == 400
        done = await filled(batches)
    assert done.backfilled_rows >= 30
    if done.backfilled_rows == 400:
        raise Late("the job was over before its sheet was there")
    assert in_google(google, config.spreadsheet_id) == once(400)


@awaited
async def test_sheet__configured_before_the_job_runs__all_rows_come_as_they_are_made(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate()
    async with running(plain, sheets, gate) as batches:
        await added(batches, 120)
        config = await configured(batches)
        assert (await filled(batches)).backfilled_rows == 0
        gate.open(60)

        async def fifty() -> bool:
            return sum(in_file(sheets, config.spreadsheet_id).values()) >= 50

        await until(fifty)  # the job is far from its end
        gate.open(60)
        await over(batches)
    assert in_file(sheets, config.spreadsheet_id) == once(120)


@awaited
async def test_sheet__formulas_and_failures__successes_are_written_as_text(
    plain: Database, account: GoogleAccount, google: SheetsServer, tmp_path: Path
) -> None:
    payloads = [
        "=1+1",
        "+cmd|' /C calc'!A0",
        "-2+3",
        "@SUM(A1)",
        "\t=1",
        '=HYPERLINK("http://x","y")',
        "\uff1d1+1",
    ]

    async def echo(account: str) -> str:
        if account == "fails":
            raise ValueError("=1+1")
        return "" if account == "silent" else account

    for sheets in (google_sheets(account, plain), LocalSheets(tmp_path)):
        job_id = type(sheets).__name__
        async with running(plain, sheets, echo) as batches:
            await batches.add("ana", [*payloads, "fails", "silent"], job_id)
            await over(batches, job_id)
            config = await configured(batches, job_id)
            await filled(batches, job_id)
        if isinstance(sheets, LocalSheets):
            written = in_file(sheets, config.spreadsheet_id)
            assert all(each.startswith("'") for each in written)
        else:
            written = in_google(google, config.spreadsheet_id)
            assert set(written) == set(payloads)
            assert google.formulas(config.spreadsheet_id) == []
        assert sum(written.values()) == len(payloads)


@awaited
async def test_configure__again__answers_with_the_same_sheet(plain: Database, tmp_path: Path) -> None:
    async with running(plain, LocalSheets(tmp_path)) as batches:
        assert await batches.configure("job", "ana", None) is None
        await added(batches, 3)
        config = await configured(batches)
        await filled(batches)
        again = await batches.configure("job", "ana", "another name")
        assert again is not None
        assert again.backfill_status is None
        assert again.config.spreadsheet_id == config.spreadsheet_id


@awaited
async def test_configure__many_at_once__is_one_sheet(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with running(database, google_sheets(account, database)) as batches:
        await added(batches, 5)
        found = await asyncio.gather(*(batches.configure("job", "ana", None) for _ in range(6)))
        assert len({each.config.spreadsheet_id for each in found if each}) == 1
        assert [each.backfill_status for each in found if each].count("pending") == 1
        await over(batches)
        config = await filled(batches)
    assert in_google(google, config.spreadsheet_id) == once(5)
    assert list(google.spreadsheets()) == [config.spreadsheet_id]


@awaited
async def test_backfill__sheet_is_denied__fails_and_is_done_when_asked_again(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with running(plain, google_sheets(account, plain)) as batches:
        await added(batches, 30)
        await over(batches)
        google.fail(403, 50, to="values:batchUpdate")
        config = await configured(batches)
        failed = await filled(batches)
        assert failed.backfill_status == FAILED
        assert "SinkDeniedError" in failed.backfill_error
        google.heal()
        again = await batches.configure("job", "ana", None)
        assert again is not None
        assert again.backfill_status == "pending"
        done = await filled(batches)
    assert (done.backfill_status, done.backfilled_rows) == (COMPLETED, 30)
    assert in_google(google, config.spreadsheet_id) == once(30)


@awaited
async def test_filling__sheet_is_denied_while_the_job_runs__the_rest_comes_when_asked_again(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    gate = Gate(20)
    async with running(plain, google_sheets(account, plain), gate) as batches:
        await added(batches, 200)
        await stored(batches, 20)
        config = await configured(batches)
        await filled(batches)
        google.fail(403, 1000, to="values:batchUpdate")
        gate.open(60)

        async def failed() -> bool:
            found = await batches.sheet("job")
            return found is not None and found.backfill_status == FAILED

        await until(failed)
        google.heal()
        assert await batches.retry_backfill("job")
        gate.open(120)
        assert (await over(batches)).succeeded == 200
        await filled(batches)
    assert in_google(google, config.spreadsheet_id) == once(200)


@awaited
async def test_filling__last_flush_fails__the_job_ends_and_the_sheet_says_so(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate()
    async with running(plain, sheets, gate) as batches:
        await added(batches, 5)
        config = await configured(batches)
        await filled(batches)
        path = sheets._found(config.spreadsheet_id)
        assert path is not None
        path.rename(tmp_path / "away")
        gate.open(5)
        assert (await over(batches)).status == COMPLETED
        assert (await filled(batches)).backfill_status == FAILED
        (tmp_path / "away").rename(path)
        assert await batches.retry_backfill("job")
        assert (await filled(batches)).backfill_status == COMPLETED
    assert in_file(sheets, config.spreadsheet_id) == once(5)


@awaited
async def test_configure__sheet_was_removed__makes_a_new_one_with_all_rows(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with running(database, google_sheets(account, database)) as batches:
        await added(batches, 30)
        await over(batches)
        first = await configured(batches)
        await filled(batches)
        for gone in (google.remove, google.trash):
            before = await filled(batches)
            gone(before.spreadsheet_id)
            again = await batches.configure("job", "ana", None)
            assert again is not None
            assert (again.backfill_status, again.config.spreadsheet_name) == (
                "pending",
                first.spreadsheet_name,
            )
            assert again.config.spreadsheet_id != before.spreadsheet_id
            done = await filled(batches)
            assert (done.backfill_status, done.backfilled_rows) == (COMPLETED, 30)
            assert in_google(google, done.spreadsheet_id) == once(30)
        same = await batches.configure("job", "ana", None)
        assert same == (done, None)


@awaited
async def test_configure__file_was_removed_while_the_job_runs__has_all_rows_once(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate(20)
    async with running(plain, sheets, gate) as batches:
        await added(batches, 60)
        await stored(batches, 20)
        config = await configured(batches)
        await filled(batches)
        path = sheets._found(config.spreadsheet_id)
        assert path is not None
        path.unlink()
        gate.open(20)
        await stored(batches, 40)
        assert await batches.retry_backfill("job")
        gate.open(20)
        await over(batches)
        if (await filled(batches)).backfill_status == FAILED:  # a last row met the removed file
            assert await batches.retry_backfill("job")
        assert (await filled(batches)).backfill_status == COMPLETED
    assert in_file(sheets, config.spreadsheet_id) == once(60)


@awaited
async def test_configure__again_while_nobody_can_tell_whether_the_sheet_is_there__keeps_it(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with running(plain, google_sheets(account, plain)) as batches:
        await added(batches, 3)
        await over(batches)
        config = await configured(batches)
        done = await filled(batches)
        google.fail(500, 10, to="GET /drive/v3/files/")
        assert await batches.configure("job", "ana", None) == (done, None)
    assert list(google.spreadsheets()) == [config.spreadsheet_id]


@awaited
async def test_backfill__quota_used_up__fails_with_the_reason(plain: Database, tmp_path: Path) -> None:
    class Never:
        class sync:  # noqa: N801 - as a limiter has it
            @staticmethod
            def acquire(*, timeout: float | None) -> bool:
                return False

        async def acquire(self, *, timeout: float | None) -> bool:
            return False

    sheets = LocalSheets(tmp_path)
    sheets.quota = Never()
    async with running(plain, sheets) as batches:
        await added(batches, 5)
        await over(batches)
        await configured(batches)
        found = await filled(batches)
    assert "LimitReachedError" in found.backfill_error


@awaited
async def test_overtaken__worker_that_was_taken_for_dead__stops(plain: Database, tmp_path: Path) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate(2)
    steal = Statement("UPDATE batch_jobs SET token = token + 1, owner = 'another'")
    async with running(plain, sheets, gate, lease_seconds=0.3, jobs_max=1) as batches:
        await added(batches, 10)
        await stored(batches, 2)
        plain.write((steal,), {})

        async def noticed() -> bool:
            return any(event.kind == "batch_overtaken" for event in events.latest_events())

        await until(noticed)
        gate.open(100)
        assert (await over(batches)).succeeded == 10  # by its next lease


@awaited
async def test_overtaken__before_its_lease_was_renewed__stores_nothing(
    plain: Database, tmp_path: Path
) -> None:
    gate = Gate(2)
    steal = Statement("UPDATE batch_jobs SET token = token + 1")
    sheets = LocalSheets(tmp_path)
    async with running(plain, sheets, gate, lease_seconds=1) as batches:
        await added(batches, 10)
        await stored(batches, 2)
        plain.write((steal,), {})
        gate.open(100)
        assert (await over(batches)).succeeded == 10


@awaited
async def test_overtaken__backfill__goes_on_with_who_has_it(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    steal = Statement("UPDATE batch_sheets SET token = token + 1")
    async with running(plain, google_sheets(account, plain), lease_seconds=0.3) as batches:
        await added(batches, 3000)
        await over(batches)
        google.latency = 0.05
        config = await configured(batches)
        await asyncio.sleep(0.15)
        plain.write((steal,), {})
        await filled(batches)
    assert in_google(google, config.spreadsheet_id) == once(3000)


@awaited
async def test_start__sheets_that_cannot_be_had__all_else_goes_on(plain: Database, tmp_path: Path) -> None:
    class Refusing(LocalSheets):
        def open(self) -> None:
            raise ImportError("no client")

    async with running(plain, Refusing(tmp_path)) as batches:
        await added(batches, 3)
        assert (await over(batches)).succeeded == 3
    assert any(event.kind == "batch_sheets_unavailable" for event in events.latest_events())


async def _held_sheet(batches: Batches) -> tuple[HeldJob, SheetConfig]:
    """Have a job, with a lease that nobody works under, and its sheet."""
    await added(batches, 3)
    config = await configured(batches)
    held = ask(batches._database, claim_job("one", 60_000_000))
    assert held is not None
    return held, config


@awaited
async def test_filling__writer_that_ended__the_sheet_has_failed(plain: Database, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    batches = Batches(plain, sheets, _settings())
    held, config = await _held_sheet(batches)
    target = Target(config.spreadsheet_id, config.boundary_us)
    filling = Filling(held, batches._sheets, batches._roles["sheets"], plain)
    await filling.put(target, [Result(1, "a", "failed", "no", 1), Result(2, "b", "success", "", 1)])
    assert in_file(sheets, config.spreadsheet_id) == {}
    await filling.put(target, [Result(1, "a", "success", "hello", 1)])
    writer: Any = filling._writer
    await writer.close()
    await filling.put(target, [Result(2, "b", "success", "hello", 1)])
    found = await batches.sheet("job")
    assert found is not None
    assert (found.backfill_status, found.backfill_error[:17]) == (FAILED, "WriterClosedError")


@awaited
async def test_filling__not_closed_in_time__the_sheet_has_failed(plain: Database, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    batches = Batches(plain, sheets, _settings())
    held, config = await _held_sheet(batches)
    filling = Filling(held, sheets, batches._roles["sheets"], plain)
    path = sheets._found(config.spreadsheet_id)
    assert path is not None
    with local._alone(LocalSheet(path)._lock):
        await filling.put(
            Target(config.spreadsheet_id, config.boundary_us), [Result(1, "a", "success", "hello", 1)]
        )
        await filling.close(0.05)
    found = await batches.sheet("job")
    assert found is not None
    assert found.backfill_error.startswith("TimeoutError")


@awaited
async def test_filling__abandoned_while_a_write_hangs__ends_and_blames_nobody(
    plain: Database, tmp_path: Path
) -> None:
    sheets = LocalSheets(tmp_path)
    batches = Batches(plain, sheets, _settings())
    held, config = await _held_sheet(batches)
    filling = Filling(held, sheets, batches._roles["sheets"], plain)
    path = sheets._found(config.spreadsheet_id)
    assert path is not None
    with local._alone(LocalSheet(path)._lock):
        await filling.put(
            Target(config.spreadsheet_id, config.boundary_us), [Result(1, "a", "success", "hello", 1)]
        )
        await filling.abandon()
    found = await batches.sheet("job")
    assert found is not None
    assert (filling._writer, found.backfill_error) == (None, "")


@awaited
async def test_run__taken_as_the_worker_ends__begins_no_account(plain: Database, tmp_path: Path) -> None:
    batches = Batches(plain, LocalSheets(tmp_path), _settings(), processor=greet)
    held, _ = await _held_sheet(batches)
    batches._taking.stopping = True
    assert not await batches._job(held)
    assert await batches.results("job", START, 10) == []


@awaited
async def test_backfill__worker_ends__stops_before_the_next_page(plain: Database, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    async with running(plain, sheets) as batches:
        await added(batches, 3)
        await over(batches)
    asks = Batches(plain, sheets, _settings())
    await configured(asks)
    held = ask(plain, claim_backfill("one", 60_000_000))
    assert held is not None
    assert not Backfill(held, plain, sheets, 60_000_000, lambda: True).run()
    assert in_file(sheets, held.spreadsheet_id) == {}
    (tmp_path / "gone").mkdir()
    failing: Any = Failing(plain)
    failing.failures = 1
    gone = LocalSheets(tmp_path / "gone")
    assert not Backfill(held, failing, gone, 60_000_000, lambda: False).run()
    assert (await filled_or_not(asks)) == "pending"
    assert Backfill(held, failing, gone, 60_000_000, lambda: False).run()
    assert (await filled_or_not(asks)) == FAILED
    assert not Backfill(held, plain, sheets, 60_000_000, lambda: False).run()  # it is over already
    assert (await filled_or_not(asks)) == FAILED


async def filled_or_not(batches: Batches) -> str:
    config = await batches.sheet("job")
    assert config is not None
    return config.backfill_status


class Failing:
    """A database that is out of reach now and then."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def _check(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise DatabaseUnavailableError("on purpose")

    def write(self, *told: Any) -> Any:
        self._check()
        return self._database.write(*told)

    async def write_async(self, *told: Any) -> Any:
        self._check()
        return await self._database.write_async(*told)

    async def read_async(self, *told: Any, **named: Any) -> Any:
        self._check()
        return await self._database.read_async(*told, **named)


@awaited
async def test_database__out_of_reach_for_a_moment__nothing_is_lost(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PATIENCE_SECONDS", (0.01,) * 5)
    failing: Any = Failing(plain)
    sheets = LocalSheets(tmp_path)
    async with running(failing, sheets, slowly) as batches:
        await added(batches, 100)
        config = await configured(batches)
        for _ in range(10):
            failing.failures = 4
            await asyncio.sleep(0.05)
        failing.failures = 0
        assert (await over(batches)).succeeded == 100
        await filled(batches)
    assert in_file(sheets, config.spreadsheet_id) == once(100)


@awaited
async def test_database__out_of_reach_for_long__the_job_is_taken_up_later(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_PATIENCE_SECONDS", (0.01,) * 3)
    monkeypatch.setattr(taking, "_TROUBLE_SECONDS_MAX", 0.1)
    failing: Any = Failing(plain)
    async with running(failing, LocalSheets(tmp_path), slowly) as batches:
        await added(batches, 100)
        await stored(batches, 5)
        failing.failures = 10**6

        async def noticed() -> bool:
            kinds = {event.kind for event in events.latest_events()}
            return {"batch_database", "batch_interrupted"} <= kinds

        await until(noticed)
        failing.failures = 0
        assert (await over(batches)).succeeded == 100


@awaited
async def test_backfill__database_out_of_reach__is_no_failure_of_the_sheet(
    plain: Database, tmp_path: Path
) -> None:
    failing: Any = Failing(plain)
    sheets = LocalSheets(tmp_path)

    class Breaking(LocalSheets):
        def sink(self, spreadsheet_id: str) -> Any:
            failing.failures = 1  # the note of the first page
            return super().sink(spreadsheet_id)

    async with running(plain, sheets) as batches:
        await added(batches, 10)
        await over(batches)
    async with running(failing, Breaking(tmp_path), lease_seconds=0.3) as batches:
        await configured(batches)

        async def noticed() -> bool:
            return any(event.kind == "batch_backfill_interrupted" for event in events.latest_events())

        await until(noticed)
    async with running(plain, sheets, lease_seconds=0.3) as batches:
        assert (await filled(batches)).backfill_status == COMPLETED


@awaited
async def test_chores__hopeless_and_old__are_seen_to(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(plain, LocalSheets(tmp_path)) as batches:
        await added(batches, 3, "old")
        await over(batches, "old")
    plain.write((Statement("UPDATE batch_jobs SET finished_at_us = 1"),), {})
    monkeypatch.setattr(taking, "FORGOTTEN_MAX", 1)
    async with running(plain, LocalSheets(tmp_path), None) as batches:
        await added(batches, 3, "hopeless")
        plain.write((Statement("UPDATE batch_jobs SET attempts = 99"),), {})

        async def gone() -> bool:
            return await batches.job("old") is None

        await until(gone)
    async with running(plain, LocalSheets(tmp_path), None) as batches:
        assert (await over(batches, "hopeless")).status == FAILED


@awaited
async def test_may_have_sheets__asked_twice__the_second_time_needs_no_thread(
    plain: Database, tmp_path: Path
) -> None:
    async with running(plain, LocalSheets(tmp_path)) as batches:
        await asyncio.to_thread(batches.whitelist.set_user, "ana", digital=True)
        assert await batches.may_have_sheets("ana")
        assert await batches.may_have_sheets("ana")
        assert not await batches.may_have_sheets("bob")


@awaited
async def test_may_have_sheets__program_answers_itself__is_asked_on_a_thread(
    plain: Database, tmp_path: Path
) -> None:
    asked_on: list[str] = []

    def is_digital(user_id: str) -> bool:
        asked_on.append(threading.current_thread().name)
        return user_id == "ana"

    async with running(plain, LocalSheets(tmp_path), is_digital=is_digital) as batches:
        assert await batches.may_have_sheets("ana")
        assert not await batches.may_have_sheets("bob")
    assert set(asked_on) == {"comporta-whitelist"}


@awaited
async def test_follow__too_many__says_so(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faces, "FOLLOWERS_MAX", 1)
    async with running(plain, LocalSheets(tmp_path), Gate(1), closing_seconds=0.1) as batches:
        await added(batches, 2)
        assert _room(batches)
        async with aclosing(batches.follow("job", asyncio.Event())) as follows:
            await anext(follows)
            assert not _room(batches)
        assert _room(batches)


def _room(batches: Batches) -> bool:
    return batches.can_be_followed


def test_start__place_of_nothing__is_before_everything() -> None:
    assert START < (1, 0)
