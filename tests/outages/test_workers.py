"""The worker count: workers that start in an outage, fork, are killed, or exit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.processes.fleet import (
    Worker,
    new_state_name,
    open_state,
    remove_shared_state,
    shared_url,
    start_workers,
)

from comporta.stores.failover import lock_files
from comporta.stores.failover.worker_count_file import address_digest, load_worker_count
from comporta.stores.failover.worker_registry import DEAD_SECONDS, HEARTBEAT_SECONDS, ListWorkers
from comporta.stores.redis.store import RedisStore
from comporta.testing import Server
from comporta.testing.redis_server import wait_until

LIMIT = {"rate": 100, "capacity": 10}
MARGIN_SECONDS = 2.0


@pytest.fixture(params=["shared", "server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Provide the URL of an empty store of either kind."""
    if request.param == "server":
        with Server() as server:
            yield server.url
    else:
        name = new_state_name()
        yield shared_url(name)
        remove_shared_state(name)


def alive(url: str) -> set[int]:
    """Return the process ids in the registry; each must appear once."""
    with open_state(url) as store:
        pids = [sign.worker.pid for sign in store.apply(ListWorkers())]
    assert len(pids) == len(set(pids))
    return set(pids)


def fallback_files(address: str) -> int:
    """Return how many workers of this machine are listed as in fallback."""
    return len(list(Path(lock_files._directory_path()).glob(f"{address_digest(address)}-*")))


# workers that start in an outage ----------------------------------------------------------------------------


def assert_share_of_the_limit(late: Worker, workers: int) -> None:
    """Assert that a worker takes the share of one of this many: its bucket starts empty, plus rounding."""
    report = late._read_result()
    assert report["workers"] == workers
    assert 0 < report["granted"] <= LIMIT["rate"] / workers * report["seconds"] + 1


def test_worker__started_in_an_outage__takes_its_share_from_the_environment() -> None:
    with Server() as server:
        server.kill()
        four = ("env", "COMPORTA_WORKERS=4")
        with Worker(
            "start_in_outage", prefix=four, number=0, url=server.url, limit=LIMIT, seconds=1.0
        ) as late:
            assert_share_of_the_limit(late, 4)
            server.start()
            assert late.wait_ready().go().result() is True
            assert len(alive(server.url)) == 1


@pytest.mark.parametrize(("others", "workers"), [("killed", 4), ("running", 5)])
def test_worker__started_in_an_outage__takes_its_share_from_this_machine(others: str, workers: int) -> None:
    """The count that the machine last saw is a minimum; those that are running count each other."""
    with Server() as server:
        address = RedisStore(server.url).address
        with start_workers(4, "stay_registered", url=server.url, limit=LIMIT) as running:
            wait_until(lambda: len(alive(server.url)) == 4, "four workers are listed", 60)
            # Until each worker has counted all: the file keeps the count of the worker that wrote last.
            time.sleep(2 * HEARTBEAT_SECONDS)
            wait_until(lambda: load_worker_count(address) == 4, "the file says four workers", 60)
            server.kill()
            if others == "killed":
                for worker in running:
                    worker.kill()
            else:
                wait_until(lambda: fallback_files(address) == 4, "each has noticed the outage", 60)
            with Worker("start_in_outage", number=4, url=server.url, limit=LIMIT, seconds=1.0) as late:
                assert_share_of_the_limit(late, workers)
                server.start()
                assert late.wait_ready().go().result() is True
                back = 1 if others == "killed" else 5
                wait_until(lambda: len(alive(server.url)) == back, "all are back", 60)


NO_COUNT = ("env", "-u", "COMPORTA_WORKERS", "-u", "WEB_CONCURRENCY")
LEARN_SECONDS = 1.0
"""Within this time a worker in fallback learns of another one on its machine, if no server listens."""


def test_workers__started_in_an_outage_without_a_count__take_one_limit_together() -> None:
    with Server() as server, ExitStack() as ends:
        server.kill()
        workers = [
            ends.enter_context(
                Worker(
                    "start_in_outage", prefix=NO_COUNT, number=number, url=server.url, limit=LIMIT, seconds=4
                )
            )
            for number in range(4)
        ]
        reports = [worker.result() for worker in workers]
        begins_ns = min(report["began_ns"] for report in reports)
        ends_ns = max(report["began_ns"] + report["seconds"] * 1e9 for report in reports)
        due = LIMIT["rate"] * (ends_ns - begins_ns) / 1e9
        unknown = LIMIT["rate"] * LEARN_SECONDS * (1 / 2 + 1 / 3 + 1 / 4)
        assert sum(report["granted"] for report in reports) <= due + unknown + len(workers)
        assert all(report["granted"] for report in reports)
        assert [report["workers"] for report in reports] == [4, 4, 4, 4]
        server.start()
        for worker in workers:
            assert worker.wait_ready().go().result() is True
        assert len(alive(server.url)) == 4
        assert fallback_files(RedisStore(server.url).address) == 0


def test_worker__killed_in_an_outage__is_no_longer_counted_on_its_machine() -> None:
    with Server() as server, ExitStack() as ends:
        server.kill()

        def start(number: int) -> Worker:
            arguments = {"number": number, "url": server.url, "limit": LIMIT, "seconds": 0.1}
            return ends.enter_context(Worker("start_in_outage", prefix=NO_COUNT, **arguments))

        first, second = start(0), start(1)
        assert {first.result()["workers"], second.result()["workers"]} <= {1, 2}
        second.kill()
        assert start(2).result()["workers"] == 2, "the first and the third"


# workers that fork, are killed, or exit ---------------------------------------------------------------------


def test_forked_worker__running__is_counted_beside_its_parent(url: str) -> None:
    with start_workers(1, "stay_registered", url=url, limit=LIMIT, forks=True) as [parent]:
        report = parent.go().result()
        both = {report["pid"], report["child"]}
        wait_until(lambda: alive(url) == both, "parent and child are listed", 60)


def test_killed_worker__silent_for_3_s__is_no_longer_counted(url: str) -> None:
    with start_workers(2, "stay_registered", url=url, limit=LIMIT) as workers:
        wait_until(lambda: len(alive(url)) == 2, "both are listed", 60)
        killed, left = workers
        killed.kill()
        within = DEAD_SECONDS + HEARTBEAT_SECONDS + MARGIN_SECONDS
        wait_until(lambda: alive(url) == {left.pid}, "only one is listed", within)


def test_worker__exits_normally__is_no_longer_counted(url: str) -> None:
    with start_workers(2, "stay_registered", url=url, limit=LIMIT) as [leaving, staying]:
        wait_until(lambda: len(alive(url)) == 2, "both are listed", 60)
        leaving.go().result()
        leaving.wait_ready().go()
        assert leaving.process.wait(60) == 0
        assert alive(url) == {staying.pid}
