"""Race conditions that occur only by chance, repeated many times."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes.accounting import check_bucket
from tests.processes.fleet import (
    Worker,
    new_state_name,
    open_state,
    remove_shared_state,
    run_together,
    shared_url,
    start_workers,
)
from tests.processes.jobs import LIMITS, SLOW, make_limiter
from tests.processes.test_redis_lifecycle import (
    test_cancelled__at_random_moments__releases_tokens_and_affects_no_other as cancel_at_random,
)

from comporta.stores.shared.directory import TABLE_NAME
from comporta.stores.shared.layout import pack_header
from comporta.stores.shared.store import SharedStore
from comporta.testing import Server

MEMORY_MB = 8


@pytest.mark.parametrize("round_", range(30))
def test_directory__from_before_a_reboot_opened_by_8_processes__is_replaced_once(round_: int) -> None:
    name = new_state_name()
    store = SharedStore(name, memory=8)
    store.close()
    with (Path(store.path) / TABLE_NAME).open("r+b") as table:
        table.write(pack_header(MEMORY_MB, "an earlier start"))
    try:
        with start_workers(8, "open_and_acquire", name=name, memory=MEMORY_MB, calls=5) as workers:
            assert sum(result["granted"] for result in run_together(workers)) == 20
        assert [path.name for path in Path(store.path).parent.glob(f"*{name}*")] == [Path(store.path).name]
    finally:
        remove_shared_state(name)


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_signal_handler__raises_at_any_moment__leaves_no_lock(shared: str, kind: str) -> None:
    url = shared if kind == "shared" else "memory://"
    with open_state(shared) as store, Worker("interrupt_randomly", number=0, url=url, seconds=20) as worker:
        limiter = make_limiter(store, LIMITS[SLOW])
        interruptions = worker.wait_ready().go().result()
        assert interruptions > 1000
        for key in ["k", *map(str, range(200))]:
            assert limiter.sync.acquire(key)
        assert worker.wait_ready().go().result() is True


def test_forks__while_threads_acquire__leave_no_child_blocked(state: str) -> None:
    with start_workers(1, "fork_under_load", url=state, forks=500) as workers:
        [result] = run_together(workers)
    assert result == {"children": [0] * 500}


@pytest.mark.parametrize("seed", range(100, 150))
def test_cancelled__at_random_moments__releases_tokens_and_affects_no_other(
    redis_server: Server, seed: int
) -> None:
    cancel_at_random(redis_server, seed)


@pytest.mark.parametrize("processes", [4, 8])
def test_many_processes__on_one_key__are_served_within_the_limit(processes: int) -> None:
    """With fewer cores than processes, the scheduler may suspend a process that holds a lock."""
    name = new_state_name()
    limit = {"rate": 1000, "capacity": 100}
    try:
        with start_workers(processes, "hammer", url=shared_url(name), limit=limit, seconds=5) as workers:
            results = run_together(workers)
    finally:
        remove_shared_state(name)
    print(check_bucket(results, 1000, 100, 0.995))  # noqa: T201
    assert all(result["grants"] for result in results)
