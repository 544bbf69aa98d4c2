"""The database commands of batches: the order of timestamps, leases, and lease tokens."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from tests.service.batch.rig import accounts

from comporta.database.base import Database, Statement
from comporta.database.command import Command, execute
from comporta.service.batch import commands, sql
from comporta.service.batch.commands import ATTEMPTS_MAX
from comporta.service.batch.models import (
    COMPLETED,
    FAILED,
    FIRST_CURSOR,
    SUCCESS,
    AccountResult,
    BackfillLease,
    BatchJob,
    Cursor,
    JobLease,
    SheetConfig,
    StoreReceipt,
    iso_timestamp,
)

T = TypeVar("T")

LEASE_US = 10_000_000
NOW = 1_800_000_000.0


def at(database: Database, command: Command[T], now: float = NOW) -> T:
    """Run a command at a given time of the database's clock."""
    return execute(database, command._replace(parameters={**command.parameters, "now": now}))


def add(
    database: Database, count: int = 10, job_id: str = "job", most: int = 100, now: float = NOW
) -> BatchJob | None:
    return at(database, commands.add_job(job_id, "ana", "digest", accounts(count), most), now)


def claim(database: Database, now: float = NOW, owner: str = "one") -> JobLease:
    lease = at(database, commands.claim_job(owner, LEASE_US), now)
    assert lease is not None
    return lease


def claim_backfill(database: Database, now: float = NOW) -> BackfillLease:
    lease = at(database, commands.claim_backfill("one", LEASE_US), now)
    assert lease is not None
    return lease


def store(
    database: Database, lease: JobLease, *positions: int, outcome: str = SUCCESS, now: float = NOW
) -> StoreReceipt | None:
    done = [
        AccountResult(position, f"account-{position}", outcome, f"done {position}") for position in positions
    ]
    return at(database, commands.store_results(lease, done), now)


def configure(database: Database, now: float = NOW) -> tuple[bool, SheetConfig | None]:
    return at(database, commands.configure_sheet("job", "ana", "sheet-1", "https://sheet/1", "a sheet"), now)


def sheet(database: Database) -> SheetConfig:
    config = execute(database, commands.read_sheet("job"))
    assert config is not None
    return config


def test_add_job__same_id_twice__is_one_job(database: Database) -> None:
    first = add(database, 3)
    assert first is not None
    assert first.as_dict() | {"created_at": ""} == {
        "job_id": "job",
        "status": "running",
        "total": 3,
        "succeeded": 0,
        "failed": 0,
        "pending": 3,
        "created_at": "",
        "finished_at": None,
    }
    assert add(database, 3) == first
    unfinished = execute(database, commands.read_unfinished("job", 0, 10))
    assert [(each.position, each.account) for each in unfinished] == list(enumerate(accounts(3), start=1))


def test_add_job__too_many_running__adds_nothing(database: Database) -> None:
    assert add(database, job_id="one", most=1) is not None
    assert add(database, job_id="two", most=1) is None
    assert execute(database, commands.read_unfinished("two", 0, 10)) == []
    assert add(database, job_id="one", most=1) is not None


def test_store_results__several__are_read_in_the_order_stored(database: Database) -> None:
    add(database)
    lease = claim(database)
    store(database, lease, 5, 6)
    store(database, lease, 1, outcome=FAILED)
    job = execute(database, commands.read_job("job"))
    assert job is not None
    assert (job.succeeded, job.failed) == (2, 1)
    page = execute(database, commands.read_results("job", FIRST_CURSOR, 2))
    assert [each.position for each in page] == [5, 6]
    rest = execute(database, commands.read_results("job", page[-1].cursor, 10))
    assert [(each.position, each.as_dict()["success"], each.message) for each in rest] == [
        (1, False, "done 1")
    ]
    assert [each.position for each in execute(database, commands.read_unfinished("job", 1, 3))] == [2, 3, 4]


def test_store_results__same_results_again__are_counted_once(database: Database) -> None:
    add(database)
    lease = claim(database)
    store(database, lease, 1, 2)
    store(database, lease, 2, 3)
    job = execute(database, commands.read_job("job"))
    assert job is not None
    assert job.succeeded == 3


def test_configure_sheet__clock_stands_still__boundary_splits_earlier_from_later(
    database: Database,
) -> None:
    add(database)
    lease = claim(database)
    store(database, lease, 1)
    last = store(database, lease, 2)
    new, config = configure(database)
    later = store(database, lease, 3)
    assert new
    assert last is not None
    assert config is not None
    assert later is not None
    assert last.at_us < config.created_at_us <= later.at_us
    assert last.target is None
    assert later.target == ("sheet-1", config.boundary_us)


def test_configure_sheet__clock_set_back__keeps_the_order(database: Database) -> None:
    add(database)
    lease = claim(database)
    last = store(database, lease, 1)
    _, config = configure(database, NOW - 3600)
    later = store(database, lease, 2, now=NOW - 3600)
    assert last is not None
    assert config is not None
    assert later is not None
    assert last.at_us < config.created_at_us <= later.at_us


def test_configure_sheet__twice__is_one_configuration(database: Database) -> None:
    add(database)
    new, config = configure(database)
    again, same = at(database, commands.configure_sheet("job", "eva", "sheet-2", "https://sheet/2", "other"))
    assert (new, again) == (True, False)
    assert same == config


def test_configure_sheet__unknown_job__returns_none(database: Database) -> None:
    assert configure(database) == (False, None)


def test_configure_sheet__while_results_are_stored__partitions_them_exactly(database: Database) -> None:
    count = 60
    add(database, count)
    lease = claim(database)
    drawn = random.Random(7)
    positions = list(range(1, count + 1))
    drawn.shuffle(positions)
    with ThreadPoolExecutor(4) as pool:
        work = [
            pool.submit(
                execute, database, commands.store_results(lease, [AccountResult(each, "", SUCCESS, "x")])
            )
            for each in positions
        ]
        middle = pool.submit(execute, database, commands.configure_sheet("job", "ana", "s", "https://s", "s"))
        receipts = {each: future.result() for each, future in zip(positions, work, strict=True)}
        middle.result()
    boundary = sheet(database).boundary_us
    for done in receipts.values():
        assert done is not None
        assert (done.target is None) == (done.at_us < boundary)
    before = execute(
        database,
        commands.read_backfill_page(BackfillLease("job", 0, "s", boundary, 0, 0), FIRST_CURSOR, 1000),
    )
    assert {each.position for each in before} == {
        position for position, done in receipts.items() if done and done.target is None
    }


def test_claim__two_workers__each_job_goes_to_one(database: Database) -> None:
    for number in range(8):
        add(database, 1, f"job-{number}")
    with ThreadPoolExecutor(4) as pool:
        leases = list(
            pool.map(lambda owner: execute(database, commands.claim_job(owner, LEASE_US)), "abcdefghijkl")
        )
    taken = [lease.job_id for lease in leases if lease is not None]
    assert len(taken) == len(set(taken))
    rest = []
    while (lease := execute(database, commands.claim_job("z", LEASE_US))) is not None:
        rest.append(lease.job_id)  # a claim skips locked rows
    assert sorted(taken + rest) == [f"job-{number}" for number in range(8)]


def test_claim__lease_expired__moves_to_another_and_the_first_changes_nothing(database: Database) -> None:
    add(database)
    first = claim(database)
    assert at(database, commands.claim_job("two", LEASE_US), NOW + 9) is None
    assert at(database, commands.has_unleased_work(LEASE_US), NOW + 9) == (False, False)
    assert at(database, commands.has_unleased_work(LEASE_US), NOW + 11) == (True, False)
    second = claim(database, NOW + 11, "two")
    assert store(database, first, 1) is None
    assert not at(database, commands.finish_job(first, COMPLETED))
    assert store(database, second, 1) is not None
    assert at(database, commands.finish_job(second, COMPLETED))
    assert execute(database, commands.claim_job("three", LEASE_US)) is None


def test_claim__lease_from_before_the_clock_was_set_back__is_ignored(database: Database) -> None:
    add(database)
    claim(database, NOW)
    assert claim(database, NOW - 3600).token == 2


def test_renew_leases__lease_of_another_worker__is_not_renewed(database: Database) -> None:
    add(database)
    lease = claim(database)
    configure(database)
    backfill = claim_backfill(database)
    renewed = at(database, commands.renew_leases("one", LEASE_US, [lease], [backfill]), NOW + 9)
    assert renewed == ({"job": lease.token}, {"job": backfill.token})
    assert at(database, commands.claim_job("two", LEASE_US), NOW + 11) is None
    claim(database, NOW + 30, "two")
    assert at(database, commands.renew_leases("one", LEASE_US, [lease], []), NOW + 31) == ({}, {})


def test_release__job_and_backfill__can_be_claimed_immediately(database: Database) -> None:
    add(database)
    configure(database)
    lease, backfill = claim(database), claim_backfill(database)
    at(database, commands.release_job(lease))
    at(database, commands.release_backfill(backfill))
    assert at(database, commands.renew_leases("one", LEASE_US, [lease], [backfill])) == ({}, {})
    assert claim(database).token == 2
    assert claim_backfill(database).token == 2


def test_move_boundary__job_taken_over__leaves_unconfirmed_rows_to_the_backfill(
    database: Database,
) -> None:
    add(database)
    lease = claim(database)
    configure(database)
    backfill = claim_backfill(database)
    assert at(database, commands.finish_backfill(backfill, COMPLETED))
    stored = [store(database, lease, position) for position in (1, 2, 3)]
    first = stored[0]
    assert first is not None
    assert first.target is not None
    at(database, commands.record_written("job", first.target.boundary_us, Cursor(first.at_us, 1)))
    at(database, commands.move_boundary(claim(database, NOW + 11, "two")))
    again = claim_backfill(database)
    left = execute(
        database, commands.read_backfill_page(again, Cursor(again.done_us, again.done_position), 10)
    )
    assert [each.position for each in left] == [2, 3]


def test_record_written__backfill_not_complete__records_nothing(database: Database) -> None:
    add(database)
    lease = claim(database)
    _, config = configure(database)
    assert config is not None
    done = store(database, lease, 1)
    assert done is not None
    at(database, commands.record_written("job", config.boundary_us, Cursor(done.at_us, 1)))
    assert sheet(database).done_us == 0


def test_reschedule_backfill__failed__covers_all_results_so_far(database: Database) -> None:
    add(database)
    lease = claim(database)
    _, config = configure(database)
    assert config is not None
    store(database, lease, 1)
    assert not at(database, commands.reschedule_backfill("job"))
    at(database, commands.record_sheet_failure(lease, config.boundary_us, "gone"))
    assert (sheet(database).backfill_status, sheet(database).backfill_error) == (FAILED, "gone")
    after = store(database, lease, 2)
    assert after is not None
    assert after.target is None
    assert at(database, commands.reschedule_backfill("job"))
    backfill = claim_backfill(database)
    left = execute(database, commands.read_backfill_page(backfill, FIRST_CURSOR, 10))
    assert [each.position for each in left] == [1, 2]
    assert at(database, commands.record_backfill_progress(backfill, left[-1].cursor, 2, LEASE_US))
    assert at(database, commands.finish_backfill(backfill, COMPLETED))
    assert (sheet(database).backfill_status, sheet(database).backfilled_rows) == (COMPLETED, 2)


def test_fail_hopeless__claimed_too_often_without_progress__is_failed(database: Database) -> None:
    add(database)
    configure(database)
    for number in range(ATTEMPTS_MAX):
        claim(database, NOW + 100 * number)
        claim_backfill(database, NOW + 100 * number)
    late = NOW + 100 * ATTEMPTS_MAX
    assert at(database, commands.claim_job("two", LEASE_US), late) is None
    assert at(database, commands.fail_hopeless(LEASE_US), late) == (["job"], ["job"])
    job = execute(database, commands.read_job("job"))
    assert job is not None
    assert job.status == FAILED
    assert sheet(database).backfill_error == "claimed too often without progress"


def test_delete_oldest__expired_jobs__are_deleted_with_their_rows(database: Database) -> None:
    add(database)
    lease = claim(database)
    configure(database)
    store(database, lease, 1)
    at(database, commands.finish_backfill(claim_backfill(database), COMPLETED))
    at(database, commands.finish_job(lease, COMPLETED))
    assert not at(database, commands.delete_oldest(60_000_000), NOW + 30)
    assert at(database, commands.delete_oldest(60_000_000), NOW + 61)
    assert not at(database, commands.delete_oldest(60_000_000), NOW + 61)
    for table in ("batch_jobs", "batch_results", "batch_sheets"):
        assert database.read(Statement(f"SELECT count(*) FROM {table}"), {}) == [(0,)]  # noqa: S608 - ours


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "a-1", "1-2-3", "9" * 30 + "-1"])
def test_cursor__malformed__is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor must be"):
        Cursor.parse(text)


def test_cursor__formatted__parses_back() -> None:
    place = Cursor(1_800_000_000_123_456, 7)
    assert Cursor.parse(str(place)) == place
    assert iso_timestamp(place.at_us) == "2027-01-15T08:00:00.123456+00:00"
    assert iso_timestamp(None) is None


def test_list_jobs__running_and_finished__include_their_workers(database: Database) -> None:
    add(database, 2, "ended")
    lease = claim(database, owner="host-7-0a1b2c3d")
    at(database, commands.store_results(lease, [AccountResult(1, "account-0", SUCCESS, "hello")]))
    at(database, commands.configure_sheet("ended", "ana", "sheet", "sheets/ended.csv", "Sheet"))
    at(database, commands.finish_job(lease, COMPLETED), NOW + 1)
    add(database, 3, "running", now=NOW + 2)
    add(database, 1, "waiting", now=NOW + 3)
    claim(database, NOW + 4, owner="a-host-8-0a1b2c3d")
    at(database, commands.claim_backfill("host-7-0a1b2c3d", LEASE_US), NOW + 4)
    jobs = at(database, commands.list_jobs(10), NOW + 5)
    overviews = {job.job_id: job.as_dict() for job in jobs}
    assert list(overviews) == ["waiting", "running", "ended"]
    assert (overviews["running"]["worker"], overviews["running"]["backfill"]) == ("a-host:8", None)
    assert (overviews["running"]["created_at"], overviews["running"]["finished_at"]) == (NOW + 2, None)
    assert overviews["waiting"]["worker"] is None
    assert overviews["ended"] == {
        "id": "ended",
        "status": COMPLETED,
        "total": 2,
        "succeeded": 1,
        "failed": 0,
        "pending": 1,
        "created_at": NOW,
        "finished_at": NOW + 1,
        "worker": None,
        "backfill": {"status": "pending", "rows": 0, "worker": "host:7"},
    }
    assert at(database, commands.count_jobs_by_owner(), NOW + 5) == {"a-host-8-0a1b2c3d": 1}
    late = NOW + 1000
    assert [job.as_dict()["worker"] for job in at(database, commands.list_jobs(10), late)] == [None] * 3
    assert at(database, commands.count_jobs_by_owner(), late) == {}
    assert len(at(database, commands.list_jobs(1), NOW + 5)) == 1


def test_list_jobs__many_jobs__uses_an_index(plain: Database) -> None:
    plans = [
        str(plain.read(Statement(f"EXPLAIN QUERY PLAN {text.sqlite}"), {"count": 20, "now": NOW}))
        for text in (sql.LIST_RUNNING, sql.LIST_FINISHED, sql.JOBS_BY_OWNER)
    ]
    assert all("USING INDEX idx_batch_jobs_" in plan for plan in plans)
    assert not any("SCAN batch_sheets" in plan for plan in plans)
