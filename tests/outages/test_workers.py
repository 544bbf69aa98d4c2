"""The worker count: workers that start in an outage, fork, are killed, or exit."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.processes.fleet import (
    Worker,
    new_state_name,
    open_state,
    remove_shared_state,
    shared_url,
    start_workers,
)

from comporta.stores.failover.worker_count_file import load_worker_count
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


# workers that start in an outage ----------------------------------------------------------------------------


def assert_quarter_of_the_limit(late: Worker) -> None:
    """Assert that a worker with four workers' count takes a quarter: it starts empty, plus rounding."""
    report = late._read_result()
    assert report["workers"] == 4
    assert 0 < report["granted"] <= LIMIT["rate"] / 4 * report["seconds"] + 1


def test_worker__started_in_an_outage__takes_its_share_from_the_environment() -> None:
    with Server() as server:
        server.kill()
        four = ("env", "COMPORTA_WORKERS=4")
        with Worker(
            "start_in_outage", prefix=four, number=0, url=server.url, limit=LIMIT, seconds=1.0
        ) as late:
            assert_quarter_of_the_limit(late)
            server.start()
            assert late.wait_ready().go().result() is True
            assert len(alive(server.url)) == 1


def test_worker__started_in_an_outage__takes_its_share_from_this_machine() -> None:
    with Server() as server:
        address = RedisStore(server.url).address
        with start_workers(4, "stay_registered", url=server.url, limit=LIMIT):
            wait_until(lambda: len(alive(server.url)) == 4, "four workers are listed", 60)
            # Until each worker has counted all: the file keeps the count of the last worker that wrote it.
            time.sleep(2 * HEARTBEAT_SECONDS)
            wait_until(lambda: load_worker_count(address) == 4, "the file says four workers", 60)
            server.kill()
            with Worker("start_in_outage", number=4, url=server.url, limit=LIMIT, seconds=1.0) as late:
                assert_quarter_of_the_limit(late)
                server.start()
                assert late.wait_ready().go().result() is True
                wait_until(lambda: len(alive(server.url)) == 5, "all five are back", 60)


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
