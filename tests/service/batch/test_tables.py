"""What batches keep in the database: the order of moments, leases, and who may change what."""

from __future__ import annotations

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from tests.service.batch.rig import accounts

from comporta.database.base import Database, Statement
from comporta.service.batch import requests, statements
from comporta.service.batch.requests import ATTEMPTS_MAX, Asked, ask
from comporta.service.batch.values import (
    COMPLETED,
    FAILED,
    START,
    SUCCESS,
    Done,
    HeldBackfill,
    HeldJob,
    Job,
    Place,
    SheetConfig,
    Stored,
    moment,
)

T = TypeVar("T")

LEASE_US = 10_000_000
NOW = 1_800_000_000.0


def at(database: Database, asked: Asked[T], now: float = NOW) -> T:
    """Ask at a moment of the database's clock."""
    return ask(database, dataclasses.replace(asked, parameters={**asked.parameters, "now": now}))


def add(
    database: Database, count: int = 10, job_id: str = "job", most: int = 100, now: float = NOW
) -> Job | None:
    return at(database, requests.add_job(job_id, "ana", "digest", accounts(count), most), now)


def claim(database: Database, now: float = NOW, owner: str = "one") -> HeldJob:
    held = at(database, requests.claim_job(owner, LEASE_US), now)
    assert held is not None
    return held


def claim_backfill(database: Database, now: float = NOW) -> HeldBackfill:
    held = at(database, requests.claim_backfill("one", LEASE_US), now)
    assert held is not None
    return held


def store(
    database: Database, held: HeldJob, *positions: int, outcome: str = SUCCESS, now: float = NOW
) -> Stored | None:
    done = [Done(position, f"account-{position}", outcome, f"done {position}") for position in positions]
    return at(database, requests.store(held, done), now)


def configure(database: Database, now: float = NOW) -> tuple[bool, SheetConfig | None]:
    return at(database, requests.configure("job", "ana", "sheet-1", "https://sheet/1", "a sheet"), now)


def sheet(database: Database) -> SheetConfig:
    found = ask(database, requests.read_sheet("job"))
    assert found is not None
    return found


def test_add__same_job_twice__is_one_job(database: Database) -> None:
    first = add(database, 3)
    assert first is not None
    assert first.told() | {"created_at": ""} == {
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
    found = ask(database, requests.unfinished("job", 0, 10))
    assert [(each.position, each.account) for each in found] == list(enumerate(accounts(3), start=1))


def test_add__too_many_under_way__adds_nothing(database: Database) -> None:
    assert add(database, job_id="one", most=1) is not None
    assert add(database, job_id="two", most=1) is None
    assert ask(database, requests.unfinished("two", 0, 10)) == []
    assert add(database, job_id="one", most=1) is not None


def test_store__results__are_read_in_the_order_in_which_they_came(database: Database) -> None:
    add(database)
    held = claim(database)
    store(database, held, 5, 6)
    store(database, held, 1, outcome=FAILED)
    job = ask(database, requests.read_job("job"))
    assert job is not None
    assert (job.succeeded, job.failed) == (2, 1)
    page = ask(database, requests.results("job", START, 2))
    assert [each.position for each in page] == [5, 6]
    rest = ask(database, requests.results("job", page[-1].place, 10))
    assert [(each.position, each.told()["success"], each.message) for each in rest] == [(1, False, "done 1")]
    assert [each.position for each in ask(database, requests.unfinished("job", 1, 3))] == [2, 3, 4]


def test_store__same_results_again__are_counted_once(database: Database) -> None:
    add(database)
    held = claim(database)
    store(database, held, 1, 2)
    store(database, held, 2, 3)
    job = ask(database, requests.read_job("job"))
    assert job is not None
    assert job.succeeded == 3


def test_configure__clock_that_stands_still__is_after_all_before_and_not_after_any_later(
    database: Database,
) -> None:
    add(database)
    held = claim(database)
    store(database, held, 1)
    last = store(database, held, 2)
    new, config = configure(database)
    later = store(database, held, 3)
    assert new
    assert last is not None
    assert config is not None
    assert later is not None
    assert last.at_us < config.created_at_us <= later.at_us
    assert last.target is None
    assert later.target == ("sheet-1", config.boundary_us)


def test_configure__clock_set_back__keeps_the_order(database: Database) -> None:
    add(database)
    held = claim(database)
    last = store(database, held, 1)
    _, config = configure(database, NOW - 3600)
    later = store(database, held, 2, now=NOW - 3600)
    assert last is not None
    assert config is not None
    assert later is not None
    assert last.at_us < config.created_at_us <= later.at_us


def test_configure__twice__is_one_configuration(database: Database) -> None:
    add(database)
    new, config = configure(database)
    again, same = at(database, requests.configure("job", "eva", "sheet-2", "https://sheet/2", "other"))
    assert (new, again) == (True, False)
    assert same == config


def test_configure__no_such_job__is_nothing(database: Database) -> None:
    assert configure(database) == (False, None)


def test_configure__while_results_come__partitions_them_exactly(database: Database) -> None:
    count = 60
    add(database, count)
    held = claim(database)
    drawn = random.Random(7)
    positions = list(range(1, count + 1))
    drawn.shuffle(positions)
    with ThreadPoolExecutor(4) as pool:
        work = [
            pool.submit(ask, database, requests.store(held, [Done(each, "", SUCCESS, "x")]))
            for each in positions
        ]
        middle = pool.submit(ask, database, requests.configure("job", "ana", "s", "https://s", "s"))
        told = {each: future.result() for each, future in zip(positions, work, strict=True)}
        middle.result()
    boundary = sheet(database).boundary_us
    for done in told.values():
        assert done is not None
        assert (done.target is None) == (done.at_us < boundary)
    before = ask(database, requests.to_backfill(HeldBackfill("job", 0, "s", boundary, 0, 0), START, 1000))
    assert {each.position for each in before} == {
        position for position, done in told.items() if done and done.target is None
    }


def test_claim__two_workers__each_job_goes_to_one(database: Database) -> None:
    for number in range(8):
        add(database, 1, f"job-{number}")
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda owner: ask(database, requests.claim_job(owner, LEASE_US)), "abcdefghijkl")
        )
    taken = [held.job_id for held in found if held is not None]
    assert len(taken) == len(set(taken))
    rest = []
    while (held := ask(database, requests.claim_job("z", LEASE_US))) is not None:
        rest.append(held.job_id)  # whoever met a locked row left it out
    assert sorted(taken + rest) == [f"job-{number}" for number in range(8)]


def test_claim__lease_ended__goes_to_another_and_the_first_changes_nothing_more(database: Database) -> None:
    add(database)
    first = claim(database)
    assert at(database, requests.claim_job("two", LEASE_US), NOW + 9) is None
    assert at(database, requests.waiting(LEASE_US), NOW + 9) == (False, False)
    assert at(database, requests.waiting(LEASE_US), NOW + 11) == (True, False)
    second = claim(database, NOW + 11, "two")
    assert store(database, first, 1) is None
    assert not at(database, requests.finish(first, COMPLETED))
    assert store(database, second, 1) is not None
    assert at(database, requests.finish(second, COMPLETED))
    assert ask(database, requests.claim_job("three", LEASE_US)) is None


def test_claim__lease_from_before_the_clock_was_set_back__is_none(database: Database) -> None:
    add(database)
    claim(database, NOW)
    assert claim(database, NOW - 3600).token == 2


def test_renew__lease_of_another__is_not_renewed(database: Database) -> None:
    add(database)
    held = claim(database)
    configure(database)
    backfill = claim_backfill(database)
    renewed = at(database, requests.renew("one", LEASE_US, [held], [backfill]), NOW + 9)
    assert renewed == ({"job": held.token}, {"job": backfill.token})
    assert at(database, requests.claim_job("two", LEASE_US), NOW + 11) is None
    claim(database, NOW + 30, "two")
    assert at(database, requests.renew("one", LEASE_US, [held], []), NOW + 31) == ({}, {})


def test_give_back__job_and_backfill__are_free_at_once(database: Database) -> None:
    add(database)
    configure(database)
    held, backfill = claim(database), claim_backfill(database)
    at(database, requests.give_back_job(held))
    at(database, requests.give_back_backfill(backfill))
    assert at(database, requests.renew("one", LEASE_US, [held], [backfill])) == ({}, {})
    assert claim(database).token == 2
    assert claim_backfill(database).token == 2


def test_move_boundary__job_taken_over__leaves_what_was_not_confirmed_to_the_backfill(
    database: Database,
) -> None:
    add(database)
    held = claim(database)
    configure(database)
    backfill = claim_backfill(database)
    assert at(database, requests.backfill_ended(backfill, COMPLETED))
    stored = [store(database, held, position) for position in (1, 2, 3)]
    first = stored[0]
    assert first is not None
    assert first.target is not None
    at(database, requests.written("job", first.target.boundary_us, Place(first.at_us, 1)))
    at(database, requests.move_boundary(claim(database, NOW + 11, "two")))
    again = claim_backfill(database)
    left = ask(database, requests.to_backfill(again, Place(again.done_us, again.done_position), 10))
    assert [each.position for each in left] == [2, 3]


def test_written__backfill_not_complete__is_not_noted(database: Database) -> None:
    add(database)
    held = claim(database)
    _, config = configure(database)
    assert config is not None
    done = store(database, held, 1)
    assert done is not None
    at(database, requests.written("job", config.boundary_us, Place(done.at_us, 1)))
    assert sheet(database).done_us == 0


def test_reschedule__failed__covers_all_so_far(database: Database) -> None:
    add(database)
    held = claim(database)
    _, config = configure(database)
    assert config is not None
    store(database, held, 1)
    assert not at(database, requests.reschedule("job"))
    at(database, requests.given_up(held, config.boundary_us, "gone"))
    assert (sheet(database).backfill_status, sheet(database).backfill_error) == (FAILED, "gone")
    after = store(database, held, 2)
    assert after is not None
    assert after.target is None
    assert at(database, requests.reschedule("job"))
    backfill = claim_backfill(database)
    left = ask(database, requests.to_backfill(backfill, START, 10))
    assert [each.position for each in left] == [1, 2]
    assert at(database, requests.backfilled(backfill, left[-1].place, 2, LEASE_US))
    assert at(database, requests.backfill_ended(backfill, COMPLETED))
    assert (sheet(database).backfill_status, sheet(database).backfilled_rows) == (COMPLETED, 2)


def test_hopeless__taken_up_again_and_again_without_getting_on__is_given_up(database: Database) -> None:
    add(database)
    configure(database)
    for number in range(ATTEMPTS_MAX):
        claim(database, NOW + 100 * number)
        claim_backfill(database, NOW + 100 * number)
    late = NOW + 100 * ATTEMPTS_MAX
    assert at(database, requests.claim_job("two", LEASE_US), late) is None
    assert at(database, requests.hopeless(LEASE_US), late) == (["job"], ["job"])
    job = ask(database, requests.read_job("job"))
    assert job is not None
    assert job.status == FAILED
    assert sheet(database).backfill_error == "taken up too often"


def test_forget__old_jobs__go_with_all_that_is_theirs(database: Database) -> None:
    add(database)
    held = claim(database)
    configure(database)
    store(database, held, 1)
    at(database, requests.backfill_ended(claim_backfill(database), COMPLETED))
    at(database, requests.finish(held, COMPLETED))
    assert not at(database, requests.forget(60_000_000), NOW + 30)
    assert at(database, requests.forget(60_000_000), NOW + 61)
    assert not at(database, requests.forget(60_000_000), NOW + 61)
    for table in ("batch_jobs", "batch_results", "batch_sheets"):
        assert database.read(Statement(f"SELECT count(*) FROM {table}"), {}) == [(0,)]  # noqa: S608 - ours


@pytest.mark.parametrize("text", ["", "1", "1-", "-1", "a-1", "1-2-3", "9" * 30 + "-1"])
def test_place__no_cursor_of_ours__is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor must be"):
        Place.read(text)


def test_place__told__is_read_back() -> None:
    place = Place(1_800_000_000_123_456, 7)
    assert Place.read(str(place)) == place
    assert moment(place.at_us) == "2027-01-15T08:00:00.123456+00:00"
    assert moment(None) is None


def test_shown__jobs_under_way_and_ended__come_with_who_works_on_them(database: Database) -> None:
    add(database, 2, "ended")
    held = claim(database, owner="host-7-0a1b2c3d")
    at(database, requests.store(held, [Done(1, "account-0", SUCCESS, "hello")]))
    at(database, requests.configure("ended", "ana", "sheet", "sheets/ended.csv", "Sheet"))
    at(database, requests.finish(held, COMPLETED), NOW + 1)
    add(database, 3, "running", now=NOW + 2)
    add(database, 1, "waiting", now=NOW + 3)
    claim(database, NOW + 4, owner="a-host-8-0a1b2c3d")
    at(database, requests.claim_backfill("host-7-0a1b2c3d", LEASE_US), NOW + 4)
    found = at(database, requests.shown(10), NOW + 5)
    told = {job.job_id: job.told() for job in found}
    assert list(told) == ["waiting", "running", "ended"]
    assert (told["running"]["worker"], told["running"]["backfill"]) == ("a-host:8", None)
    assert (told["running"]["created_at"], told["running"]["finished_at"]) == (NOW + 2, None)
    assert told["waiting"]["worker"] is None
    assert told["ended"] == {
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
    assert at(database, requests.holders(), NOW + 5) == {"a-host-8-0a1b2c3d": 1}
    late = NOW + 1000
    assert [job.told()["worker"] for job in at(database, requests.shown(10), late)] == [None] * 3
    assert at(database, requests.holders(), late) == {}
    assert len(at(database, requests.shown(1), NOW + 5)) == 1


def test_shown__however_many_jobs__finds_them_by_an_index(plain: Database) -> None:
    plans = [
        str(plain.read(Statement(f"EXPLAIN QUERY PLAN {text.sqlite}"), {"count": 20, "now": NOW}))
        for text in (statements.SHOW_RUNNING, statements.SHOW_ENDED, statements.HOLDERS)
    ]
    assert all("USING INDEX idx_batch_jobs_" in plan for plan in plans)
    assert not any("SCAN batch_sheets" in plan for plan in plans)
