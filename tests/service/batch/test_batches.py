"""Jobs and their sheets from the first account to the last row, with the failures on the way."""

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
    add_job,
    configure_sheet,
    each_once,
    file_accounts,
    google_accounts,
    google_sheets,
    greet,
    greet_slowly,
    run_batches,
    wait_backfilled,
    wait_finished,
    wait_polled,
    wait_stored,
    wait_until,
)
from tests.service.harness import async_test
from tests.support import Late

from comporta import events
from comporta.database.base import Database, Statement
from comporta.database.command import execute
from comporta.errors import DatabaseUnavailableError
from comporta.limits.priority import resolve_caller
from comporta.pipeline.sinks import GoogleAccount
from comporta.service.batch import batches as faces
from comporta.service.batch import job_leases, sheet_turn
from comporta.service.batch import runner as runs
from comporta.service.batch.batches import Batches
from comporta.service.batch.chunk_commands import claim_chunk, store_results
from comporta.service.batch.commands import claim_sheet, release_sheet
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.models import (
    COMPLETED,
    FAILED,
    FIRST_CURSOR,
    AccountResult,
    BatchJob,
    SheetLease,
    StoredResult,
)
from comporta.service.batch.sheet_turn import SINKS_MAX, OpenSheets, SheetTurn
from comporta.testing import SheetsServer

LEASE_US = 60_000_000


async def follow_all(batches: Batches, job_id: str = "job") -> list[StoredResult | BatchJob]:
    items: list[StoredResult | BatchJob] = []
    async for item in batches.follow(job_id, asyncio.Event()):
        items += [item] if isinstance(item, BatchJob) else item
    return items


@async_test
async def test_job__run__every_account_has_its_result(database: Database, tmp_path: Path) -> None:
    async def odd(account: str) -> str:
        if account.endswith("7"):
            raise ValueError(f"not {account}\n\0")
        return f" hello\t{account}\0 "

    async with run_batches(database, LocalSheets(tmp_path), odd) as batches:
        await add_job(batches, 100)
        items = await follow_all(batches)
    job = items.pop()
    assert isinstance(job, BatchJob)
    assert (job.status, job.total, job.succeeded, job.failed) == (COMPLETED, 100, 90, 10)
    results = {each.account: each for each in items if isinstance(each, StoredResult)}
    assert list(results) != []
    assert set(results) == set(accounts(100))
    assert (results["account-1"].outcome, results["account-1"].message) == ("success", "hello account-1")
    assert results["account-7"].message == "ValueError: not account-7"


@async_test
async def test_job__blocking_processor__runs_on_its_own_thread_pool(plain: Database, tmp_path: Path) -> None:
    def where(account: str) -> str:
        time.sleep(0.001)  # sleeps: the processor under test takes this long
        return threading.current_thread().name

    async with run_batches(plain, LocalSheets(tmp_path), where) as batches:
        await add_job(batches, 20)
        items = await follow_all(batches)
    assert {each.message for each in items if isinstance(each, StoredResult)} == {"comporta-processor"}


@async_test
async def test_job__accounts__are_processed_as_a_batch_that_its_job_owns(
    plain: Database, tmp_path: Path
) -> None:
    async def caller(account: str) -> str:
        return str(tuple(resolve_caller(None, None)))

    async with run_batches(plain, LocalSheets(tmp_path), caller) as batches:
        await add_job(batches, 3)
        results = [item for item in await follow_all(batches) if isinstance(item, StoredResult)]
    assert {result.message for result in results} == {"(2, 'job job')"}


@async_test
async def test_job__account_twice__is_processed_once(plain: Database, tmp_path: Path) -> None:
    async with run_batches(plain, LocalSheets(tmp_path)) as batches:
        job = await batches.add_job("ana", ["a", "b", "a"])
        assert job is not None
        assert job.total == 2
        assert (await wait_finished(batches, job.job_id)).succeeded == 2


@async_test
async def test_job__no_processor_configured__waits(plain: Database, tmp_path: Path) -> None:
    async with run_batches(plain, LocalSheets(tmp_path), None) as batches:
        assert not batches.can_process
        await add_job(batches, 1)
        await wait_polled(batches)
        job = await batches.read_job("job")
        assert job is not None
        assert job.status == "running"
    async with run_batches(plain, LocalSheets(tmp_path)) as batches:
        assert (await wait_finished(batches)).succeeded == 1


@async_test
async def test_job__more_than_may_run_at_once__waits_in_the_database(plain: Database, tmp_path: Path) -> None:
    gate = Gate()
    async with run_batches(plain, LocalSheets(tmp_path), gate, jobs_max=1) as batches:
        for job_id in ("one", "two"):  # one place, and one more for a job that has had no turn
            await add_job(batches, 2, job_id)
            await wait_until(lambda job_id=job_id: _is_claimed(plain, job_id))  # type: ignore[misc]
        await add_job(batches, 2, "three")
        await wait_polled(batches)
        assert not await _is_claimed(plain, "three")
        gate.open(6)
        assert (await wait_finished(batches, "three")).succeeded == 2


async def _is_claimed(database: Database, job_id: str) -> bool:
    rows = database.read(
        Statement("SELECT served_us FROM batch_jobs WHERE job_id = :job_id"), {"job_id": job_id}
    )
    return bool(rows[0][0])


@async_test
async def test_follow__job_of_another_worker__is_followed_to_its_end(
    database: Database, tmp_path: Path
) -> None:
    sheets = LocalSheets(tmp_path)
    async with (
        run_batches(database, sheets, greet_slowly) as runs,
        run_batches(database, sheets, None) as follows,
    ):
        await add_job(runs, 60)
        items = await follow_all(follows)
    assert len(items) == 61
    assert isinstance(items[-1], BatchJob)


@async_test
async def test_follow__worker_shuts_down__ends_the_stream(plain: Database, tmp_path: Path) -> None:
    shutting_down = asyncio.Event()
    async with run_batches(plain, LocalSheets(tmp_path), Gate(3), closing_seconds=0.1) as batches:
        await add_job(batches, 10)
        results: list[Any] = []
        async for page in batches.follow("job", shutting_down):
            results += page
            if len(results) == 3:
                shutting_down.set()
        assert len(results) == 3
        assert [each async for each in batches.follow("no-such-job", asyncio.Event())] == []


@async_test
async def test_stop__job_in_progress__is_flushed_and_continues_on_another_worker(
    database: Database, tmp_path: Path
) -> None:
    sheets = LocalSheets(tmp_path)
    async with run_batches(database, sheets, greet_slowly, lease_seconds=600) as first:
        await add_job(first, 300)
        config = await configure_sheet(first)
        await wait_stored(first, 20)
    done = sum(file_accounts(sheets, config.spreadsheet_id).values())
    assert done >= 20
    async with run_batches(database, sheets, greet, lease_seconds=600) as second:
        assert (await wait_finished(second)).succeeded == 300
        await wait_backfilled(second)
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(300)


@async_test
async def test_stop__processor_hangs__is_cancelled_and_its_job_released(
    plain: Database, tmp_path: Path
) -> None:
    sheets = LocalSheets(tmp_path)
    batches = Batches(plain, sheets, _settings(lease_seconds=600), processor=Gate())
    batches.start()
    await add_job(batches, 3)
    await wait_until(lambda: _is_claimed(plain, "job"))
    await batches.aclose(0.05)
    async with run_batches(plain, sheets, lease_seconds=600) as second:
        assert (await wait_finished(second)).succeeded == 3


def _settings(**settings: Any) -> Any:
    from comporta.settings import BatchSettings  # noqa: PLC0415 - see rig

    return BatchSettings(**{"poll_seconds": 0.05, "concurrency": 4, **settings})


@pytest.mark.unmeasured
@async_test
async def test_sheet__configured_after_the_job__backfill_writes_all_rows(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with run_batches(database, google_sheets(account, database)) as batches:
        await add_job(batches, 2500)
        await wait_finished(batches)
        config = await configure_sheet(batches)
        assert config.spreadsheet_name == "Ultra batch job"
        done = await wait_backfilled(batches)
    assert (done.backfill_status, done.backfilled_rows) == (COMPLETED, 2500)
    assert google_accounts(google, config.spreadsheet_id) == each_once(2500)


@async_test
async def test_sheet__configured_while_the_job_runs__has_every_row_once(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with run_batches(database, google_sheets(account, database), greet_slowly) as batches:
        await add_job(batches, 400)
        await wait_stored(batches, 30)
        google.fail(429, 3, retry_after="0", matching="values:batchUpdate")
        google.lose_responses(3, matching="values:batchUpdate")
        config = await configure_sheet(batches)
        await wait_stored(batches, 200)
        google.lose_responses(2, reset=True, matching="values:batchUpdate")
        assert (await wait_finished(batches)).succeeded == 400
        done = await wait_backfilled(batches)
    assert done.backfilled_rows >= 30
    if done.backfilled_rows == 400:
        raise Late("the job was over before its sheet was there")
    assert google_accounts(google, config.spreadsheet_id) == each_once(400)


@async_test
async def test_sheet__configured_before_the_job_runs__gets_rows_as_they_are_stored(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate()
    async with run_batches(plain, sheets, gate) as batches:
        await add_job(batches, 120)
        config = await configure_sheet(batches)
        assert (await wait_backfilled(batches)).backfilled_rows == 0
        gate.open(60)

        async def fifty() -> bool:
            return sum(file_accounts(sheets, config.spreadsheet_id).values()) >= 50

        await wait_until(fifty)  # long before the job ends
        gate.open(60)
        await wait_finished(batches)
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(120)


@async_test
async def test_sheet__formulas_and_failures__has_successes_as_text_only(
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
        async with run_batches(plain, sheets, echo) as batches:
            await batches.add_job("ana", [*payloads, "fails", "silent"], job_id)
            await wait_finished(batches, job_id)
            config = await configure_sheet(batches, job_id)
            await wait_backfilled(batches, job_id)
        if isinstance(sheets, LocalSheets):
            written = file_accounts(sheets, config.spreadsheet_id)
            assert all(each.startswith("'") for each in written)
        else:
            written = google_accounts(google, config.spreadsheet_id)
            assert set(written) == set(payloads)
            assert google.formulas(config.spreadsheet_id) == []
        assert sum(written.values()) == len(payloads)


@async_test
async def test_sheet__more_than_may_be_filled_at_once__are_filled_in_turns(
    plain: Database, tmp_path: Path
) -> None:
    async def fail(account: str) -> str:
        raise ValueError(account)

    sheets, jobs = LocalSheets(tmp_path), [f"job-{number}" for number in range(3)]
    async with run_batches(plain, sheets, fail, backfills_max=1) as batches:
        for job_id in jobs:
            await add_job(batches, 60, job_id)
            await configure_sheet(batches, job_id)
        for job_id in jobs:
            assert (await wait_finished(batches, job_id)).failed == 60
            config = await wait_backfilled(batches, job_id)
            assert (config.backfill_status, config.backfilled_rows) == (COMPLETED, 0)
            assert file_accounts(sheets, config.spreadsheet_id) == {}


@async_test
async def test_configure_sheet__again__returns_the_same_sheet(plain: Database, tmp_path: Path) -> None:
    async with run_batches(plain, LocalSheets(tmp_path)) as batches:
        assert await batches.configure_sheet("job", "ana", None) is None
        await add_job(batches, 3)
        config = await configure_sheet(batches)
        await wait_backfilled(batches)
        again = await batches.configure_sheet("job", "ana", "another name")
        assert again is not None
        assert again.backfill_status is None
        assert again.config.spreadsheet_id == config.spreadsheet_id


@async_test
async def test_configure_sheet__many_at_once__creates_one_sheet(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with run_batches(database, google_sheets(account, database)) as batches:
        await add_job(batches, 5)
        sheets = await asyncio.gather(*(batches.configure_sheet("job", "ana", None) for _ in range(6)))
        assert len({each.config.spreadsheet_id for each in sheets if each}) == 1
        assert [each.backfill_status for each in sheets if each].count("pending") == 1
        await wait_finished(batches)
        config = await wait_backfilled(batches)
    assert google_accounts(google, config.spreadsheet_id) == each_once(5)
    assert list(google.spreadsheets()) == [config.spreadsheet_id]


@async_test
async def test_backfill__access_denied__fails_and_completes_when_retried(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with run_batches(plain, google_sheets(account, plain)) as batches:
        await add_job(batches, 30)
        await wait_finished(batches)
        google.fail(403, 50, matching="values:batchUpdate")
        config = await configure_sheet(batches)
        failed = await wait_backfilled(batches)
        assert failed.backfill_status == FAILED
        assert "SinkAuthError" in failed.backfill_error
        google.heal()
        again = await batches.configure_sheet("job", "ana", None)
        assert again is not None
        assert again.backfill_status == "pending"
        done = await wait_backfilled(batches)
    assert (done.backfill_status, done.backfilled_rows) == (COMPLETED, 30)
    assert google_accounts(google, config.spreadsheet_id) == each_once(30)


@async_test
async def test_sheet__access_denied_during_a_job__rest_is_written_when_retried(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    gate = Gate(20)
    async with run_batches(plain, google_sheets(account, plain), gate) as batches:
        await add_job(batches, 200)
        await wait_stored(batches, 20)
        config = await configure_sheet(batches)
        await wait_backfilled(batches)
        google.fail(403, 1000, matching="values:batchUpdate")
        gate.open(60)

        async def failed() -> bool:
            config = await batches.read_sheet("job")
            return config is not None and config.backfill_status == FAILED

        await wait_until(failed)
        google.heal()
        assert await batches.retry_backfill("job")
        gate.open(120)
        assert (await wait_finished(batches)).succeeded == 200
        await wait_backfilled(batches)
    assert google_accounts(google, config.spreadsheet_id) == each_once(200)


@async_test
async def test_sheet__last_flush_fails__job_completes_and_sheet_is_failed(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate()
    async with run_batches(plain, sheets, gate) as batches:
        await add_job(batches, 5)
        config = await configure_sheet(batches)
        await wait_backfilled(batches)
        path = sheets._find(config.spreadsheet_id)
        assert path is not None
        path.rename(tmp_path / "away")
        gate.open(5)
        assert (await wait_finished(batches)).status == COMPLETED
        assert (await wait_backfilled(batches)).backfill_status == FAILED
        (tmp_path / "away").rename(path)
        assert await batches.retry_backfill("job")
        assert (await wait_backfilled(batches)).backfill_status == COMPLETED
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(5)


@async_test
async def test_configure_sheet__sheet_was_removed__creates_a_new_one_with_all_rows(
    database: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with run_batches(database, google_sheets(account, database)) as batches:
        await add_job(batches, 30)
        await wait_finished(batches)
        first = await configure_sheet(batches)
        await wait_backfilled(batches)
        for gone in (google.remove, google.trash):
            before = await wait_backfilled(batches)
            gone(before.spreadsheet_id)
            again = await batches.configure_sheet("job", "ana", None)
            assert again is not None
            assert (again.backfill_status, again.config.spreadsheet_name) == (
                "pending",
                first.spreadsheet_name,
            )
            assert again.config.spreadsheet_id != before.spreadsheet_id
            done = await wait_backfilled(batches)
            assert (done.backfill_status, done.backfilled_rows) == (COMPLETED, 30)
            assert google_accounts(google, done.spreadsheet_id) == each_once(30)
        same = await batches.configure_sheet("job", "ana", None)
        assert same == (done, None)


@async_test
async def test_configure_sheet__file_removed_during_a_job__has_all_rows_once(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate(20)
    async with run_batches(plain, sheets, gate) as batches:
        await add_job(batches, 60)
        await wait_stored(batches, 20)
        config = await configure_sheet(batches)
        await wait_backfilled(batches)
        path = sheets._find(config.spreadsheet_id)
        assert path is not None
        path.unlink()
        gate.open(20)
        await wait_stored(batches, 40)
        assert await batches.retry_backfill("job")
        gate.open(20)
        await wait_finished(batches)
        if (await wait_backfilled(batches)).backfill_status == FAILED:  # written to the removed file
            assert await batches.retry_backfill("job")
        assert (await wait_backfilled(batches)).backfill_status == COMPLETED
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(60)


@async_test
async def test_configure_sheet__existence_check_fails__keeps_the_sheet(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    async with run_batches(plain, google_sheets(account, plain)) as batches:
        await add_job(batches, 3)
        await wait_finished(batches)
        config = await configure_sheet(batches)
        done = await wait_backfilled(batches)
        google.fail(500, 10, matching="GET /drive/v3/files/")
        assert await batches.configure_sheet("job", "ana", None) == (done, None)
    assert list(google.spreadsheets()) == [config.spreadsheet_id]


@async_test
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
    async with run_batches(plain, sheets) as batches:
        await add_job(batches, 5)
        await wait_finished(batches)
        await configure_sheet(batches)
        config = await wait_backfilled(batches)
    assert "LimitReachedError" in config.backfill_error


@async_test
async def test_lease__taken_over_by_another_worker__stops_the_job_here(
    plain: Database, tmp_path: Path
) -> None:
    sheets, gate = LocalSheets(tmp_path), Gate(2)
    steal = Statement("UPDATE batch_chunks SET token = token + 1, owner = 'another'")
    async with run_batches(plain, sheets, gate, lease_seconds=1, jobs_max=1) as batches:
        await add_job(batches, 10)
        await wait_stored(batches, 2)
        plain.write((steal,), {})

        async def noticed() -> bool:
            return any(event.kind == "batch_lease_lost" for event in events.latest_events())

        await wait_until(noticed)
        gate.open(100)
        assert (await wait_finished(batches)).succeeded == 10  # under its next lease


@async_test
async def test_lease__taken_over_before_renewal__stores_nothing(plain: Database, tmp_path: Path) -> None:
    gate = Gate(2)
    steal = Statement("UPDATE batch_chunks SET token = token + 1")
    sheets = LocalSheets(tmp_path)
    async with run_batches(plain, sheets, gate, lease_seconds=1) as batches:
        await add_job(batches, 10)
        await wait_stored(batches, 2)
        plain.write((steal,), {})
        gate.open(100)
        assert (await wait_finished(batches)).succeeded == 10


@async_test
async def test_lease__sheet_taken_over__continues_at_the_new_owner(
    plain: Database, account: GoogleAccount, google: SheetsServer
) -> None:
    steal = Statement("UPDATE batch_sheets SET token = token + 1")
    async with run_batches(plain, google_sheets(account, plain), lease_seconds=0.3) as batches:
        await add_job(batches, 3000)
        await wait_finished(batches)
        google.latency = 0.05
        config = await configure_sheet(batches)

        async def has_rows() -> bool:
            return len(google.rows(config.spreadsheet_id)) > 1

        await wait_until(has_rows)
        plain.write((steal,), {})
        await wait_backfilled(batches)
    assert google_accounts(google, config.spreadsheet_id) == each_once(3000)


@async_test
async def test_start__sheets_unavailable__jobs_still_run(plain: Database, tmp_path: Path) -> None:
    class Refusing(LocalSheets):
        def open(self) -> None:
            raise ImportError("no client")

    async with run_batches(plain, Refusing(tmp_path)) as batches:
        await add_job(batches, 3)
        assert (await wait_finished(batches)).succeeded == 3
    assert any(event.kind == "batch_sheets_unavailable" for event in events.latest_events())


async def _leased_sheet(batches: Batches, count: int = 3) -> SheetLease:
    """Return the lease of the sheet of a job with all its results, which nothing fills."""
    await add_job(batches, count)
    await configure_sheet(batches)
    chunk = execute(batches._database, claim_chunk("job", "one", LEASE_US, count))
    assert chunk is not None
    done = [AccountResult(*account, "success", f"hello {account.account}") for account in chunk.accounts]
    execute(batches._database, store_results(chunk.lease, done, LEASE_US, is_last=True))
    return claim_the_sheet(batches._database)


def claim_the_sheet(database: Database) -> SheetLease:
    lease = execute(database, claim_sheet("one", LEASE_US))
    assert lease is not None
    return lease


def _turn(
    lease: SheetLease,
    database: Any,
    sheets: LocalSheets,
    kept: OpenSheets | None = None,
    *,
    stop: bool = False,
) -> SheetTurn:
    return SheetTurn(
        lease,
        database,
        sheets,
        kept or OpenSheets(sheets),
        LEASE_US,
        should_stop=lambda: stop,
        before_end=lambda: None,
    )


@async_test
async def test_sheet_turn__several_turns__keep_the_sheet_open(plain: Database, tmp_path: Path) -> None:
    opened: list[str] = []

    class Counting(LocalSheets):
        def sink(self, spreadsheet_id: str) -> Any:
            opened.append(spreadsheet_id)
            return super().sink(spreadsheet_id)

    sheets = Counting(tmp_path)
    batches = Batches(plain, sheets, _settings())
    kept = OpenSheets(sheets)
    lease = await _leased_sheet(batches)
    turn = _turn(lease, plain, sheets, kept)
    assert turn.run()
    assert (turn.is_job_finished, turn.due_us, opened) == (True, None, [lease.spreadsheet_id])
    sink = kept.take(lease.spreadsheet_id)
    assert len(opened) == 1
    for number in range(SINKS_MAX + 1):
        kept.give_back(str(number), sink)
    kept.give_back("1", sink)
    kept.close()
    assert file_accounts(sheets, lease.spreadsheet_id) == each_once(3)


@async_test
async def test_sheet_turn__lease_lost__records_nothing(plain: Database, tmp_path: Path) -> None:
    sheets = LocalSheets(tmp_path)
    batches = Batches(plain, sheets, _settings())
    lease = await _leased_sheet(batches)
    execute(plain, release_sheet(lease))
    later = claim_the_sheet(plain)
    assert not _turn(lease, plain, sheets).run()
    assert not _turn(lease._replace(done_us=2**60), plain, sheets).run()
    assert (await backfill_status(batches)) == "pending"
    assert _turn(later, plain, sheets).run()
    assert file_accounts(sheets, lease.spreadsheet_id) == each_once(3)


@async_test
async def test_job_run__claimed_during_shutdown__starts_no_account(plain: Database, tmp_path: Path) -> None:
    batches = Batches(plain, LocalSheets(tmp_path), _settings(), processor=greet)
    await add_job(batches, 3)
    chunk = execute(plain, claim_chunk("job", "one", LEASE_US, 3))
    assert chunk is not None
    assert batches._processor is not None
    batches._turns.stop()
    batches._turns._start_run(chunk, batches._processor)
    await batches.aclose(10)
    assert await batches.read_results("job", FIRST_CURSOR, 10) == []
    again = execute(plain, claim_chunk("job", "two", LEASE_US, 3))
    assert again is not None
    assert (again.lease.attempts, len(again.accounts)) == (1, 3)


@async_test
async def test_sheet_turn__worker_shuts_down__stops_after_the_page(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet_turn, "PAGE_RESULTS", 2)
    sheets = LocalSheets(tmp_path)
    other = Batches(plain, sheets, _settings())
    lease = await _leased_sheet(other)
    assert not _turn(lease, plain, sheets, stop=True).run()
    assert sum(file_accounts(sheets, lease.spreadsheet_id).values()) == 2
    (tmp_path / "gone").mkdir()
    failing: Any = FailingDatabase(plain)
    failing.failures = 1
    gone = LocalSheets(tmp_path / "gone")
    assert not _turn(lease, failing, gone).run()
    assert (await backfill_status(other)) == COMPLETED  # the database is at fault, not the sheet
    assert _turn(lease, failing, gone).run()
    assert (await backfill_status(other)) == FAILED
    assert not _turn(lease, failing, gone).run()  # it has already ended
    assert (await backfill_status(other)) == FAILED


async def backfill_status(batches: Batches) -> str:
    config = await batches.read_sheet("job")
    assert config is not None
    return config.backfill_status


class FailingDatabase:
    """A database that is unreachable for a number of calls, or of blocking writes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.failures = 0
        self.write_failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def _check(self) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise DatabaseUnavailableError("on purpose")

    def write(self, *args: Any) -> Any:
        self._check()
        if self.write_failures > 0:
            self.write_failures -= 1
            raise DatabaseUnavailableError("on purpose")
        return self._database.write(*args)

    async def write_async(self, *args: Any) -> Any:
        self._check()
        return await self._database.write_async(*args)

    async def read_async(self, *args: Any, **kwargs: Any) -> Any:
        self._check()
        return await self._database.read_async(*args, **kwargs)


@async_test
async def test_database__unreachable_briefly__loses_nothing(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_RETRY_DELAYS", (0.01,) * 5)
    failing: Any = FailingDatabase(plain)
    sheets = LocalSheets(tmp_path)
    async with run_batches(failing, sheets, greet_slowly) as batches:
        await add_job(batches, 100)
        config = await configure_sheet(batches)

        async def is_running() -> bool:
            return bool(batches._turns.runs)

        async def failed_or_finished() -> bool:
            return failing.failures == 0 or not batches._turns.runs

        await wait_until(is_running)
        for _ in range(10):
            failing.failures = 4
            await wait_until(failed_or_finished)
        failing.failures = 0
        assert (await wait_finished(batches)).succeeded == 100
        await wait_backfilled(batches)
    assert file_accounts(sheets, config.spreadsheet_id) == each_once(100)


@async_test
async def test_database__unreachable_for_long__job_is_claimed_again_later(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_RETRY_DELAYS", (0.01,) * 3)
    monkeypatch.setattr(job_leases, "_BACKOFF_SECONDS_MAX", 0.1)
    failing: Any = FailingDatabase(plain)
    async with run_batches(failing, LocalSheets(tmp_path), greet_slowly) as batches:
        await add_job(batches, 100)
        await wait_stored(batches, 5)
        failing.failures = 10**6

        async def noticed() -> bool:
            kinds = {event.kind for event in events.latest_events()}
            return {"batch_database", "batch_interrupted"} <= kinds

        await wait_until(noticed)
        failing.failures = 0
        assert (await wait_finished(batches)).succeeded == 100


@async_test
async def test_backfill__database_unreachable__does_not_mark_the_sheet_failed(
    plain: Database, tmp_path: Path
) -> None:
    failing: Any = FailingDatabase(plain)
    sheets = LocalSheets(tmp_path)

    class Breaking(LocalSheets):
        def sink(self, spreadsheet_id: str) -> Any:
            failing.write_failures = 1  # recording the first page fails
            return super().sink(spreadsheet_id)

    async with run_batches(plain, sheets) as batches:
        await add_job(batches, 10)
        await wait_finished(batches)
    async with run_batches(failing, Breaking(tmp_path), lease_seconds=0.3) as batches:
        await configure_sheet(batches)

        async def noticed() -> bool:
            return any(event.kind == "batch_backfill_interrupted" for event in events.latest_events())

        await wait_until(noticed)
    async with run_batches(plain, sheets, lease_seconds=0.3) as batches:
        assert (await wait_backfilled(batches)).backfill_status == COMPLETED


@async_test
async def test_cleanup__hopeless_sheets_and_expired_jobs__are_failed_and_deleted(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets = LocalSheets(tmp_path)
    async with run_batches(plain, sheets) as batches:
        await add_job(batches, 3, "old")
        await wait_finished(batches, "old")
    plain.write((Statement("UPDATE batch_jobs SET finished_at_us = 1"),), {})
    monkeypatch.setattr(job_leases, "DELETED_MAX", 1)
    other = Batches(plain, sheets, _settings())
    await _leased_sheet(other)
    plain.write((Statement("UPDATE batch_sheets SET attempts = 99, lease_until_us = 0"),), {})
    async with run_batches(plain, sheets, None) as batches:

        async def gone() -> bool:
            return await batches.read_job("old") is None

        await wait_until(gone)
        assert (await wait_finished(batches)).status == COMPLETED
        assert (await backfill_status(batches)) == FAILED


@async_test
async def test_may_have_sheets__called_twice__second_call_needs_no_thread(
    plain: Database, tmp_path: Path
) -> None:
    async with run_batches(plain, LocalSheets(tmp_path)) as batches:
        await asyncio.to_thread(batches.whitelist.set_user, "ana", digital=True)
        assert await batches.may_have_sheets("ana")
        assert await batches.may_have_sheets("ana")
        assert not await batches.may_have_sheets("bob")


@async_test
async def test_may_have_sheets__custom_function__runs_on_a_thread(plain: Database, tmp_path: Path) -> None:
    asked_on: list[str] = []

    def is_digital(user_id: str) -> bool:
        asked_on.append(threading.current_thread().name)
        return user_id == "ana"

    async with run_batches(plain, LocalSheets(tmp_path), is_digital=is_digital) as batches:
        assert await batches.may_have_sheets("ana")
        assert not await batches.may_have_sheets("bob")
    assert set(asked_on) == {"comporta-whitelist"}


@async_test
async def test_follow__too_many_followers__has_no_room(
    plain: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faces, "FOLLOWERS_MAX", 1)
    async with run_batches(plain, LocalSheets(tmp_path), Gate(1), closing_seconds=0.1) as batches:
        await add_job(batches, 2)
        assert _room(batches)
        async with aclosing(batches.follow("job", asyncio.Event())) as follows:
            await anext(follows)
            assert not _room(batches)
        assert _room(batches)


def _room(batches: Batches) -> bool:
    return batches.has_follower_room


def test_first_cursor__compared__is_before_every_result() -> None:
    assert FIRST_CURSOR < (1, 0)
