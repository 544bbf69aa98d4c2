"""The table between processes: nothing is lost, nothing is granted twice, and the dead hold nothing."""

from __future__ import annotations

import time
from itertools import chain

from tests.cache.table_jobs import KEY
from tests.processes.fleet import Worker, started, together

from comporta.cache.table import CacheTable
from comporta.database.base import Database
from comporta.database.urls import open_database


def patient(url: str) -> str:
    """Return a URL for a machine that may be busy with other things."""
    return f"{url}{'&' if '?' in url else '?'}timeout=30"


def test_fail__two_processes_fifty_times_each__counts_a_hundred(
    database: Database, database_url: str
) -> None:
    table = CacheTable(database)
    table.succeed(KEY, None, "user-2", KEY, b"{}", b"[]", 0, [])
    with started(2, "table_fails", url=patient(database_url), times=50) as workers:
        assert max(together(workers)) == 100
    assert table.look(KEY).fail_streak == 100
    for user in ("user-0", "user-1", "user-2"):
        entry = table.read(user, KEY)
        assert entry is not None
        assert entry.fail_streak == 100
        assert entry.degraded_until == table.look(KEY).degraded_until


def test_claim__three_processes__each_key_is_granted_once(database: Database, database_url: str) -> None:
    with started(3, "table_claims", url=patient(database_url), keys=30) as workers:
        granted = together(workers)
    assert sorted(chain(*granted)) == list(range(30))


def test_claim__holder_killed__is_granted_when_its_lease_ends(database: Database, database_url: str) -> None:
    table = CacheTable(database)
    with Worker("table_claims_and_waits", number=0, url=patient(database_url), seconds=1.0) as worker:
        granted, *_ = worker.ready().go().answer()
        assert granted
    refused = table.claim(KEY, "next", 60)
    while not (claim := table.claim(KEY, "next", 60)).granted:
        time.sleep(0.02)
    if not refused.granted:
        assert refused.lease_until is not None
        assert refused.lease_until <= claim.now < refused.lease_until + 10
    assert claim.owner == "next"


def test_migrate__four_processes_at_once__is_done_once(empty_database_url: str) -> None:
    with started(4, "table_migrates", url=patient(empty_database_url)) as workers:
        assert together(workers) == [0, 1, 2, 3]
    database = open_database(empty_database_url)
    CacheTable(database).check()
    database.close()


def test_fail__process_forks_with_a_table_in_its_hands__both_sides_count(
    database: Database, database_url: str
) -> None:
    with started(1, "table_forks", url=patient(database_url), times=20) as workers:
        assert together(workers) == [[0, 41]]
    assert CacheTable(database).look(KEY).fail_streak == 41
