"""The tables between processes: no count is lost, no lease granted twice, and dead workers hold none."""

from __future__ import annotations

from itertools import chain

from tests.cache.table_jobs import KEY
from tests.processes.fleet import Worker, run_together, start_workers
from tests.support import wait_until

from comporta.cache.tables import CacheTables
from comporta.database.base import Database
from comporta.database.urls import open_database


def patient(url: str) -> str:
    """Return the URL with a timeout long enough for a busy machine."""
    return f"{url}{'&' if '?' in url else '?'}timeout=30"


def test_record_failure__two_processes_fifty_times_each__counts_100(
    database: Database, database_url: str
) -> None:
    table = CacheTables(database)
    table.record_success(KEY, None, "user-2", KEY, b"{}", b"[]", 0, [])
    with start_workers(2, "table_fails", url=patient(database_url), times=50) as workers:
        assert max(run_together(workers)) == 100
    assert table.read_claim(KEY).fail_streak == 100
    for user in ("user-0", "user-1", "user-2"):
        row = table.read(user, KEY)
        assert row is not None
        assert row.fail_streak == 100
        assert row.degraded_until == table.read_claim(KEY).degraded_until


def test_claim__three_processes__grants_each_key_once(database: Database, database_url: str) -> None:
    with start_workers(3, "table_claims", url=patient(database_url), keys=30) as workers:
        granted = run_together(workers)
    assert sorted(chain(*granted)) == list(range(30))


def test_claim__holder_killed__is_granted_after_its_lease(database: Database, database_url: str) -> None:
    table = CacheTables(database)
    with Worker("table_claims_and_waits", number=0, url=patient(database_url), seconds=1.0) as worker:
        granted, *_ = worker.wait_ready().go().result()
        assert granted
    refused = claim = table.claim(KEY, "next", 60)

    def claim_again() -> bool:
        nonlocal claim
        claim = table.claim(KEY, "next", 60)
        return claim.granted

    if not refused.granted:
        wait_until(claim_again)
    if not refused.granted:
        assert refused.lease_until is not None
        assert refused.lease_until <= claim.now < refused.lease_until + 10
    assert claim.owner == "next"


def test_migrate__four_processes_at_once__runs_each_migration_once(empty_database_url: str) -> None:
    with start_workers(4, "table_migrates", url=patient(empty_database_url)) as workers:
        assert run_together(workers) == [0, 1, 2, 3]
    database = open_database(empty_database_url)
    CacheTables(database).check()
    database.close()


def test_record_failure__process_forks_with_open_tables__both_sides_count(
    database: Database, database_url: str
) -> None:
    with start_workers(1, "table_forks", url=patient(database_url), times=20) as workers:
        assert run_together(workers) == [[0, 41]]
    assert CacheTables(database).read_claim(KEY).fail_streak == 41
