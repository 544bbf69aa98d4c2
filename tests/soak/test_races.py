"""Moments that are met only by chance, tried many times."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.accounting import check_bucket
from tests.processes.fleet import Worker, new_name, opened, remove, shared_url, started, together
from tests.processes.jobs import LIMITS, SLOW, limiter_of
from tests.processes.test_redis_life import (
    test_cancelled__at_random_moments__harms_no_other_caller_and_is_given_back as cancel_at_random,
)

from comporta.stores.folder import TABLE
from comporta.stores.shared import SharedStore
from comporta.stores.table import header
from comporta.testing import Server

KEYS = 128


@pytest.mark.parametrize("round_", range(30))
def test_folder__from_before_a_reboot_opened_by_8_processes_at_once__is_replaced_once(round_: int) -> None:
    name = new_name()
    store = SharedStore(name, keys=KEYS)
    store.close()
    with (Path(store.path) / TABLE).open("r+b") as table:
        table.write(header(KEYS, "an earlier start"))
    try:
        with started(8, "open_and_take", name=name, keys=KEYS, calls=5) as workers:
            assert sum(answer["granted"] for answer in together(workers)) == 20
        assert [path.name for path in Path(store.path).parent.glob(f"*{name}*")] == [Path(store.path).name]
    finally:
        remove(name)


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_interrupted_by_a_handler_that_raises__leaves_no_lock_behind(shared: str, kind: str) -> None:
    url = shared if kind == "shared" else "memory://"
    with opened(shared) as store, Worker("interrupted", number=0, url=url, seconds=20) as worker:
        limiter = limiter_of(store, LIMITS[SLOW])
        interruptions = worker.ready().go().answer()
        assert interruptions > 1000
        for key in ["k", *map(str, range(200))]:
            assert limiter.sync.acquire(key)
        assert worker.ready().go().answer() is True


def test_forks__while_threads_hammer__leave_no_child_waiting(state: str) -> None:
    with started(1, "fork_under_load", url=state, forks=500) as workers:
        [answer] = together(workers)
    assert answer == {"children": [0] * 500}


@pytest.mark.parametrize("seed", range(100, 150))
def test_cancelled__at_random_moments__harms_no_other_caller_and_is_given_back(
    redis_server: Server, seed: int
) -> None:
    cancel_at_random(redis_server, seed)


@pytest.mark.parametrize("processes", [4, 8])
def test_many_processes__on_one_key__all_are_served_and_no_more_is_granted_than_due(processes: int) -> None:
    """With fewer cores than processes: whoever holds a lock may be put aside for a while."""
    name = new_name()
    limit = {"rate": 1000, "capacity": 100}
    try:
        with started(processes, "hammer", url=shared_url(name), limit=limit, seconds=5) as workers:
            answers = together(workers)
    finally:
        remove(name)
    print(check_bucket(answers, 1000, 100, 0.995))  # noqa: T201
    assert all(answer["grants"] for answer in answers)
