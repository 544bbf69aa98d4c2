"""The database commands of batches: the order of timestamps, leases, and lease tokens."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from tests.service.batch.rig import accounts

from comporta.database.base import Database, Statement
from comporta.database.command import Command, execute
from comporta.service.batch import chunk_commands, commands, sql
from comporta.service.batch.commands import ATTEMPTS_MAX
from comporta.service.batch.models import (
    COMPLETED,
    FAILED,
    FIRST_CURSOR,
    SUCCESS,
    AccountResult,
    BatchJob,
    ChunkLease,
    ClaimedChunk,
    Cursor,
    JobBounds,
    PendingWork,
    SheetConfig,
    SheetLease,
    StoredResult,
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
    return at(database, commands.add_job(job_id, "ana", "digest", accounts(count), JobBounds(most)), now)


def claim(
    database: Database, now: float = NOW, owner: str = "one", count: int = 10, job_id: str = "job"
) -> ChunkLease:
    chunk = try_claim(database, now, owner, count, job_id)
    assert chunk is not None
    return chunk.lease


def try_claim(
    database: Database, now: float = NOW, owner: str = "one", count: int = 10, job_id: str = "job"
) -> ClaimedChunk | None:
    return at(database, chunk_commands.claim_chunk(job_id, owner, LEASE_US, count), now)


def claim_sheet(database: Database, now: float = NOW) -> SheetLease:
    lease = at(database, commands.claim_sheet("one", LEASE_US), now)
    assert lease is not None
    return lease


def store(
    database: Database,
    lease: ChunkLease,
    *positions: int,
    outcome: str = SUCCESS,
    now: float = NOW,
    is_last: bool = False,
) -> StoreReceipt | None:
    done = [
        AccountResult(position, f"account-{position}", outcome, f"done {position}") for position in positions
    ]
    return at(database, chunk_commands.store_results(lease, done, LEASE_US, is_last=is_last), now)


def read_pending(database: Database, now: float = NOW, *held: str) -> PendingWork:
    return at(database, chunk_commands.read_pending_work(LEASE_US, held), now)


def job_of(database: Database, job_id: str = "job") -> BatchJob:
    job = execute(database, commands.read_job(job_id))
    assert job is not None
    return job


def chunks(database: Database) -> list[tuple[int, int, int]]:
    """Return the first and the last position and the attempts of each chunk."""
    text = "SELECT first_position, last_position, attempts FROM batch_chunks ORDER BY job_id, first_position"
    return [(first, last, attempts) for first, last, attempts in database.read(Statement(text), {})]


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
    chunk = try_claim(database)
    assert chunk is not None
    assert [(each.position, each.account) for each in chunk.accounts] == list(enumerate(accounts(3), start=1))


def test_add_job__too_many_running__adds_nothing(database: Database) -> None:
    assert add(database, job_id="one", most=1) is not None
    assert add(database, job_id="two", most=1) is None
    assert try_claim(database, job_id="two") is None
    assert add(database, job_id="one", most=1) is not None


def test_store_results__several__are_read_in_the_order_stored(database: Database) -> None:
    add(database)
    lease = claim(database)
    store(database, lease, 5, 6)
    store(database, lease, 1, outcome=FAILED)
    job = job_of(database)
    assert (job.succeeded, job.failed) == (2, 1)
    page = execute(database, commands.read_results("job", FIRST_CURSOR, 2))
    assert [each.position for each in page] == [5, 6]
    rest = execute(database, commands.read_results("job", page[-1].cursor, 10))
    assert [(each.position, each.as_dict()["success"], each.message) for each in rest] == [
        (1, False, "done 1")
    ]
    at(database, chunk_commands.release_chunk(lease))
    left = try_claim(database)
    assert left is not None
    assert [each.position for each in left.accounts] == [2, 3, 4, 7, 8, 9, 10]


def test_store_results__same_results_again__are_counted_once(database: Database) -> None:
    add(database)
    lease = claim(database)
    store(database, lease, 1, 2)
    store(database, lease, 2, 3)
    job = job_of(database)
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
    assert (last.sheet_due_us, later.sheet_due_us) == (None, -round(NOW * 1e6))  # due since it exists


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
    lease = claim(database, count=count)
    drawn = random.Random(7)
    positions = list(range(1, count + 1))
    drawn.shuffle(positions)

    def store_one(position: int) -> StoreReceipt | None:
        done = [AccountResult(position, "", SUCCESS, "x")]
        return execute(database, chunk_commands.store_results(lease, done, LEASE_US, is_last=False))

    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(store_one, each) for each in positions]
        middle = pool.submit(execute, database, commands.configure_sheet("job", "ana", "s", "https://s", "s"))
        receipts = {each: future.result() for each, future in zip(positions, work, strict=True)}
        middle.result()
    boundary = sheet(database).boundary_us
    for done in receipts.values():
        assert done is not None
        assert (done.sheet_due_us is None) == (done.at_us < boundary)
    results = execute(database, commands.read_results("job", FIRST_CURSOR, 1000))
    assert {each.position for each in results if each.processed_at_us < boundary} == {
        position for position, done in receipts.items() if done and done.sheet_due_us is None
    }


@pytest.mark.unmeasured
def test_store_results__by_several_workers__cursors_skip_nothing(database: Database) -> None:
    """A reader that follows the results while chunks are stored at the same time sees each of them once."""
    count, size = 400, 20
    add(database, count)
    seen: list[int] = []

    def work(owner: str) -> None:
        while (
            chunk := execute(database, chunk_commands.claim_chunk("job", owner, LEASE_US, size))
        ) is not None:
            for account in reversed(chunk.accounts):
                is_last = account.position == chunk.lease.first
                done = [AccountResult(account.position, "", SUCCESS, "x")]
                assert execute(
                    database, chunk_commands.store_results(chunk.lease, done, LEASE_US, is_last=is_last)
                )

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, owner) for owner in "abc"]
        after = FIRST_CURSOR
        while job_of(database).status == "running" or len(seen) < count:
            is_over = all(each.done() for each in workers)  # before the page, which then has all results
            page = execute(database, commands.read_results("job", after, 7))
            assert page or not is_over
            seen += [each.position for each in page]
            after = page[-1].cursor if page else after
        for each in workers:
            each.result()
    assert sorted(seen) == list(range(1, count + 1))
    assert job_of(database).succeeded == count


def test_claim_chunk__several_workers__each_account_goes_to_one(database: Database) -> None:
    add(database, 100)
    with ThreadPoolExecutor(4) as pool:
        claimed = list(
            pool.map(
                lambda owner: execute(database, chunk_commands.claim_chunk("job", owner, LEASE_US, 9)),
                "abcdefghijklmn",
            )
        )
    positions = [account.position for chunk in claimed if chunk for account in chunk.accounts]
    assert sorted(positions) == list(range(1, 101))
    assert [chunk for chunk in claimed if chunk is None] == [None, None]


def test_claim_chunk__repeated_after_a_lost_reply__is_the_same_chunk(database: Database) -> None:
    add(database, 30)
    at(database, chunk_commands.release_chunk(claim(database, count=5)))
    at(database, chunk_commands.release_chunk(claim(database, count=5)))
    command = chunk_commands.claim_chunk("job", "one", LEASE_US, 5)
    first = at(database, command)
    assert first is not None
    assert at(database, command) == first
    assert chunks(database) == [(1, 5, 1)]


def test_lease__expired_and_claimed_by_another__the_first_worker_changes_nothing(database: Database) -> None:
    add(database, 1)
    first = claim(database)
    assert read_pending(database, NOW + 9) == (False, 0, None, False, False, None, False)
    assert read_pending(database, NOW + 11).suspects
    assert at(database, chunk_commands.claim_suspect("two", LEASE_US), NOW + 9) is None
    second = at(database, chunk_commands.claim_suspect("two", LEASE_US), NOW + 11)
    assert second is not None
    assert store(database, first, 1) is None
    assert job_of(database).succeeded == 0
    receipt = store(database, second.lease, 1, is_last=True)
    assert receipt is not None
    assert receipt.is_job_finished
    assert (job_of(database).status, chunks(database)) == (COMPLETED, [])


def test_lease__from_before_the_clock_was_set_back__is_ignored(database: Database) -> None:
    add(database, 1)
    claim(database)
    assert read_pending(database, NOW - 3600).suspects


def test_renew_leases__lease_of_another_worker__is_not_renewed(database: Database) -> None:
    add(database, 1)
    lease = claim(database)
    configure(database)
    sheet_lease = claim_sheet(database)
    renewed = at(database, chunk_commands.renew_leases("one", LEASE_US, [lease], [sheet_lease]), NOW + 9)
    assert renewed == ({("job", lease.token)}, {("job", sheet_lease.token)})
    assert not read_pending(database, NOW + 11).suspects
    assert at(database, chunk_commands.claim_suspect("two", LEASE_US), NOW + 30) is not None
    assert at(database, chunk_commands.renew_leases("one", LEASE_US, [lease], []), NOW + 31) == (set(), set())


def test_release__chunk_and_sheet__can_be_claimed_immediately(database: Database) -> None:
    add(database)
    configure(database)
    lease, sheet_lease = claim(database), claim_sheet(database)
    at(database, chunk_commands.release_chunk(lease))
    at(database, commands.release_sheet(sheet_lease))
    renewal = chunk_commands.renew_leases("one", LEASE_US, [lease], [sheet_lease])
    assert at(database, renewal) == (set(), set())
    assert claim(database)._replace(token=0) == lease._replace(token=0)  # not counted as an attempt
    assert claim_sheet(database).token == 2


# -- turns


def find(database: Database, *held: str, is_new: bool = False, now: float = NOW) -> str | None:
    return at(database, chunk_commands.find_job(LEASE_US, held, is_new=is_new), now)


def test_find_job__several_jobs__fewest_chunks_first_then_longest_unserved(database: Database) -> None:
    for number in range(3):
        add(database, 100, f"job-{number}", now=NOW + number)
    assert read_pending(database, NOW + 3).waiting == 3
    order = []
    for second in range(6):
        now = NOW + 3 + second
        job_id = find(database, now=now)
        assert job_id is not None
        claim(database, now, job_id=job_id)
        order.append(job_id)
    assert order == ["job-0", "job-1", "job-2"] * 2
    assert find(database, "job-0", now=NOW + 9) == "job-1"
    assert read_pending(database, NOW + 9).waiting == 0
    assert find(database, "job-0", "job-1", "job-2") is None
    assert not read_pending(database, NOW + 9, "job-0", "job-1", "job-2").jobs


def test_find_job__only_new_ones__have_never_been_claimed(database: Database) -> None:
    add(database, 100, "served")
    claim(database, job_id="served")
    assert find(database, is_new=True) is None
    add(database, 1, "new", now=NOW + 1)
    assert find(database, is_new=True) == "new"


# -- dead workers


def test_split_dead__some_results_stored__each_other_account_is_claimed_by_itself(database: Database) -> None:
    add(database, 10)
    lease = claim(database, count=6)
    store(database, lease, 1, 3)
    assert read_pending(database, NOW + 9).dead_chunk_job is None
    assert read_pending(database, NOW + 11).dead_chunk_job == "job"
    at(database, chunk_commands.split_dead("job", LEASE_US), NOW + 11)
    assert chunks(database) == [(position, position, 1) for position in (1, 2, 4, 5, 6)]
    assert store(database, lease, 2) is None
    renewal = chunk_commands.renew_leases("one", LEASE_US, [lease], [])
    assert at(database, renewal, NOW + 11) == (set(), set())
    claimed = []
    while (chunk := at(database, chunk_commands.claim_suspect("two", LEASE_US), NOW + 11)) is not None:
        claimed.append([account.position for account in chunk.accounts])
        assert chunk.lease.attempts == 2
    assert claimed == [[], [2], [4], [5], [6]]
    assert claim(database, NOW + 12).first == 7


def test_fail_exhausted__three_attempts__fails_this_account_and_finishes_the_job(database: Database) -> None:
    add(database, 2)
    store(database, claim(database), 2)
    at(database, chunk_commands.split_dead("job", LEASE_US), NOW + 20)
    assert at(database, chunk_commands.claim_last_attempt("two", LEASE_US), NOW + 20) is None
    assert at(database, chunk_commands.claim_suspect("two", LEASE_US), NOW + 20) is not None
    assert read_pending(database, NOW + 40).last_attempts
    assert at(database, chunk_commands.claim_suspect("two", LEASE_US), NOW + 40) is None
    assert at(database, chunk_commands.claim_last_attempt("two", LEASE_US), NOW + 40) is not None
    assert read_pending(database, NOW + 49).exhausted_job is None
    assert read_pending(database, NOW + 60).exhausted_job == "job"
    assert at(database, chunk_commands.fail_exhausted("job", LEASE_US), NOW + 60) == (1, True)
    [failed] = [each for each in results_of(database) if each.outcome == FAILED]
    assert (failed.position, failed.message) == (
        1,
        "the worker died each time it processed this account, 3 times",
    )
    assert (job_of(database).status, job_of(database).succeeded, job_of(database).failed) == (COMPLETED, 1, 1)
    assert at(database, chunk_commands.fail_exhausted("job", LEASE_US), NOW + 60) == (0, False)


def results_of(database: Database) -> list[StoredResult]:
    return execute(database, commands.read_results("job", FIRST_CURSOR, 1000))


# -- sheets


def test_store_results__sheet_configured__is_due_at_fifty_results_or_after_two_seconds(
    database: Database,
) -> None:
    add(database, 100)
    lease = claim(database, count=100)
    configure(database)
    end = at(database, commands.end_sheet_turn(claim_sheet(database), FIRST_CURSOR))
    assert end == (True, False, None)
    first = store(database, lease, 1)
    second = store(database, lease, *range(2, 50), now=NOW + 1)
    third = store(database, lease, 50, now=NOW + 1.5)
    receipts = [receipt for receipt in (first, second, third) if receipt is not None]
    assert [receipt.sheet_due_us for receipt in receipts] == [2_000_000, 1_000_000, 0]
    assert read_pending(database, NOW + 1.5).sheets


def test_end_sheet_turn__results_stored_meanwhile__are_due_in_two_seconds(database: Database) -> None:
    add(database, 3)
    lease = claim(database)
    configure(database)
    sheet_lease = claim_sheet(database)
    store(database, lease, 1)
    assert at(database, commands.end_sheet_turn(sheet_lease, FIRST_CURSOR)) == (True, False, 2_000_000)
    assert sheet(database).backfill_status == COMPLETED
    assert at(database, commands.claim_sheet("one", LEASE_US)) is None
    assert at(database, commands.claim_sheet("one", LEASE_US, ahead_us=2_000_000)) is not None


def test_end_sheet_turn__all_results_written__finishes_the_job(database: Database) -> None:
    add(database, 2)
    configure(database)
    receipt = store(database, claim(database), 1, 2, is_last=True)
    assert receipt is not None
    assert not receipt.is_job_finished
    sheet_lease = claim_sheet(database)
    assert at(database, commands.end_sheet_turn(sheet_lease, FIRST_CURSOR)) == (True, False, 0)
    again = claim_sheet(database)
    last = results_of(database)[-1].cursor
    assert at(database, commands.end_sheet_turn(sheet_lease, last)) == (False, False, 0)
    assert at(database, commands.end_sheet_turn(again, last)) == (True, True, None)
    assert job_of(database).status == COMPLETED


def test_record_progress__page_behind_the_boundary__completes_the_backfill(database: Database) -> None:
    add(database)
    lease = claim(database)
    store(database, lease, 1)
    configure(database)
    store(database, lease, 2)
    first, second = (each.cursor for each in results_of(database))
    sheet_lease = claim_sheet(database)
    assert at(database, commands.record_progress(sheet_lease, first, 1, LEASE_US))
    assert (sheet(database).backfill_status, sheet(database).backfilled_rows) == ("pending", 1)
    assert at(database, commands.record_progress(sheet_lease, second, 0, LEASE_US))
    assert (sheet(database).backfill_status, sheet(database).backfilled_rows) == (COMPLETED, 1)
    lost = sheet_lease._replace(token=0)
    assert not at(database, commands.record_progress(lost, second, 0, LEASE_US))


def test_reschedule_backfill__failed__covers_all_results_so_far(database: Database) -> None:
    add(database)
    lease = claim(database)
    configure(database)
    store(database, lease, 1)
    assert not at(database, commands.reschedule_backfill("job"))
    assert at(database, commands.fail_sheet(claim_sheet(database), "gone")) == (True, False)
    assert (sheet(database).backfill_status, sheet(database).backfill_error) == (FAILED, "gone")
    after = store(database, lease, 2)
    assert after is not None
    assert after.sheet_due_us is None
    assert at(database, commands.reschedule_backfill("job"))
    sheet_lease = claim_sheet(database)
    assert [each.processed_at_us < sheet_lease.boundary_us for each in results_of(database)] == [True, True]
    assert sheet_lease.backfill_status == "pending"


def test_fail_sheet__all_results_stored__finishes_the_job(database: Database) -> None:
    add(database, 1)
    configure(database)
    sheet_lease = claim_sheet(database)
    store(database, claim(database), 1, is_last=True)
    assert at(database, commands.fail_sheet(sheet_lease, "gone")) == (True, True)
    assert at(database, commands.fail_sheet(sheet_lease, "gone")) == (False, False)


def test_fail_hopeless__claimed_too_often_without_progress__is_failed(database: Database) -> None:
    add(database, 1)
    configure(database)
    store(database, claim(database), 1, is_last=True)
    for number in range(ATTEMPTS_MAX):
        claim_sheet(database, NOW + 100 * number)
    late = NOW + 100 * ATTEMPTS_MAX
    assert at(database, commands.claim_sheet("two", LEASE_US), late) is None
    assert at(database, commands.fail_hopeless(LEASE_US), late) == (["job"], ["job"])
    assert job_of(database).status == COMPLETED
    assert sheet(database).backfill_error == "claimed too often without progress"


def test_delete_oldest__expired_jobs__are_deleted_with_their_rows(database: Database) -> None:
    add(database, 1)
    configure(database)
    store(database, claim(database), 1, is_last=True)
    end = commands.end_sheet_turn(claim_sheet(database), results_of(database)[-1].cursor)
    assert at(database, end) == (True, True, None)
    assert not at(database, commands.delete_oldest(60_000_000), NOW + 30)
    assert at(database, commands.delete_oldest(60_000_000), NOW + 61)
    assert not at(database, commands.delete_oldest(60_000_000), NOW + 61)
    for table in ("batch_jobs", "batch_results", "batch_sheets", "batch_chunks"):
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
    add(database, 1, "ended")
    lease = claim(database, owner="host-7-0a1b2c3d", job_id="ended")
    store(database, lease, 1, is_last=True, now=NOW + 1)
    at(database, commands.configure_sheet("ended", "ana", "sheet", "sheets/ended.csv", "Sheet"))
    add(database, 30, "running", now=NOW + 2)
    add(database, 1, "waiting", now=NOW + 3)
    for owner in ("a-host-8-0a1b2c3d", "b-host-9-0a1b2c3d", "b-host-9-0a1b2c3d"):
        claim(database, NOW + 4, owner=owner, job_id="running")
    at(database, commands.claim_sheet("host-7-0a1b2c3d", LEASE_US), NOW + 4)
    jobs = at(database, commands.list_jobs(10), NOW + 5)
    overviews = {job.job_id: job.as_dict() for job in jobs}
    assert list(overviews) == ["waiting", "running", "ended"]
    running = overviews["running"]
    assert (running["worker"], running["workers"], running["backfill"]) == ("a-host:8", 2, None)
    assert (running["created_at"], running["finished_at"]) == (NOW + 2, None)
    assert (overviews["waiting"]["worker"], overviews["waiting"]["workers"]) == (None, 0)
    assert overviews["ended"] == {
        "id": "ended",
        "status": COMPLETED,
        "total": 1,
        "succeeded": 1,
        "failed": 0,
        "pending": 0,
        "created_at": NOW,
        "finished_at": NOW + 1,
        "worker": None,
        "workers": 0,
        "backfill": {"status": "pending", "rows": 0, "worker": "host:7"},
    }
    counts = {"a-host-8-0a1b2c3d": 1, "b-host-9-0a1b2c3d": 1}
    assert at(database, commands.count_jobs_by_owner(), NOW + 5) == counts
    late = NOW + 1000
    assert [job.as_dict()["worker"] for job in at(database, commands.list_jobs(10), late)] == [None] * 3
    assert at(database, commands.count_jobs_by_owner(), late) == {}
    assert len(at(database, commands.list_jobs(1), NOW + 5)) == 1


def test_list_jobs__many_jobs__uses_an_index(plain: Database) -> None:
    plans = [
        str(plain.read(Statement(f"EXPLAIN QUERY PLAN {text.sqlite}"), {"count": 20, "now": NOW}))
        for text in (sql.LIST_RUNNING, sql.LIST_FINISHED)
    ]
    assert all("USING INDEX idx_batch_jobs_" in plan for plan in plans)
    assert not any("SCAN batch_sheets" in plan or "SCAN batch_chunks" in plan for plan in plans)
