"""Who is counted as a worker: latecomers in an outage, forked ones, killed ones, those that leave."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.processes.fleet import Worker, new_name, opened, remove, shared_url, started

from comporta.stores.known import recalled
from comporta.stores.redis import RedisStore
from comporta.stores.workers import BEAT_SECONDS, DEAD_SECONDS, Roll
from comporta.testing import Server
from comporta.testing.servers import wait_until

LIMIT = {"rate": 100, "capacity": 10}
MARGIN_SECONDS = 2.0


@pytest.fixture(params=["shared", "server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give an empty state of either kind."""
    if request.param == "server":
        with Server() as server:
            yield server.url
    else:
        name = new_name()
        yield shared_url(name)
        remove(name)


def alive(url: str) -> set[int]:
    """Return the process ids in the registry, each of which has to be there once."""
    with opened(url) as store:
        pids = [sign.worker.pid for sign in store.apply(Roll())]
    assert len(pids) == len(set(pids))
    return set(pids)


# those that come while the server is away -------------------------------------------------------------------


def quarter_of_the_limit(late: Worker) -> None:
    """Hold a worker on its own to a quarter: it starts empty, and rounding gives it a token at the most."""
    told = late._heard()
    assert told["workers"] == 4
    assert 0 < told["granted"] <= LIMIT["rate"] / 4 * told["seconds"] + 1


def test_worker__started_while_the_server_is_away__has_the_share_the_environment_says_and_joins() -> None:
    with Server() as server:
        server.kill()
        four = ("env", "COMPORTA_WORKERS=4")
        with Worker("come_late", prefix=four, number=0, url=server.url, limit=LIMIT, seconds=1.0) as late:
            quarter_of_the_limit(late)
            server.start()
            assert late.ready().go().answer() is True
            assert len(alive(server.url)) == 1


def test_worker__started_while_the_server_is_away__has_the_share_this_machine_last_saw_and_joins() -> None:
    with Server() as server:
        address = RedisStore(server.url).address
        with started(4, "attend", url=server.url, limit=LIMIT):
            wait_until(lambda: len(alive(server.url)) == 4, "four workers are listed", 60)
            time.sleep(2 * BEAT_SECONDS)  # until each has heard of all: the last to write a note is believed
            wait_until(lambda: recalled(address) == 4, "four workers are noted", 60)
            server.kill()
            with Worker("come_late", number=4, url=server.url, limit=LIMIT, seconds=1.0) as late:
                quarter_of_the_limit(late)
                server.start()
                assert late.ready().go().answer() is True
                wait_until(lambda: len(alive(server.url)) == 5, "all five are back", 60)


# those that fork, die and leave -----------------------------------------------------------------------------


def test_forked_worker__is_counted_beside_its_parent(url: str) -> None:
    with started(1, "attend", url=url, limit=LIMIT, forks=True) as [parent]:
        told = parent.go().answer()
        both = {told["pid"], told["child"]}
        wait_until(lambda: alive(url) == both, "parent and child are listed", 60)


def test_killed_worker__is_no_longer_counted_once_it_was_silent_for_3_s(url: str) -> None:
    with started(2, "attend", url=url, limit=LIMIT) as workers:
        wait_until(lambda: len(alive(url)) == 2, "both are listed", 60)
        killed, left = workers
        killed.kill()
        within = DEAD_SECONDS + BEAT_SECONDS + MARGIN_SECONDS
        wait_until(lambda: alive(url) == {left.pid}, "only one is listed", within)


def test_worker__that_ends_in_good_order__is_no_longer_counted_at_once(url: str) -> None:
    with started(2, "attend", url=url, limit=LIMIT) as [leaving, staying]:
        wait_until(lambda: len(alive(url)) == 2, "both are listed", 60)
        leaving.go().answer()
        leaving.ready().go()
        assert leaving.process.wait(60) == 0
        assert alive(url) == {staying.pid}
