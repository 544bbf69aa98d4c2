"""Leases in several processes: the limit holds, little is lost, and dead or idle workers block no one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
from tests.processes.accounting import active_seconds, all_grants, check_bucket, check_window
from tests.processes.fleet import Worker, open_state, run_together, start_workers, with_long_timeout
from tests.processes.jobs import make_limiter
from tests.support import Late, assert_within

SECONDS = 2.0
AT_LEAST = 0.99
FAST = {"rate": 1000, "capacity": 1000, "lease": True}
MARGIN_SECONDS = 1.0
"""Allowance for a machine with two cores that other programs use too, in seconds."""


@pytest.mark.parametrize(("job", "burst"), [("hammer", 10), ("hammer", 1000), ("hammer_async", 100)])
def test_token_bucket__leased_by_two_processes__grants_what_is_due(state: str, job: str, burst: int) -> None:
    limit = {"rate": 1000, "capacity": burst, "lease": True}
    with start_workers(2, job, url=with_long_timeout(state), limit=limit, seconds=SECONDS) as workers:
        results = run_together(workers)
    print(check_bucket(results, 1000, burst, AT_LEAST))  # noqa: T201


def test_sliding_window__leased_by_two_processes__is_never_exceeded(state: str) -> None:
    limit = {"rate": 1, "capacity": 500, "window": 0.5, "strategy": "sliding_window", "lease": True}
    with start_workers(2, "hammer", url=with_long_timeout(state), limit=limit, seconds=2.6 * 0.5) as workers:
        results = run_together(workers)
    print(check_window(results, 500, 0.5, 0.95))  # noqa: T201


def test_worker__killed_with_a_lease__blocks_others_at_most_for_its_ttl(state: str) -> None:
    limit = {**FAST, "lease": 1.0}
    with (
        open_state(state) as store,
        Worker("hold_lease", number=0, url=with_long_timeout(state), limit=limit, calls=200) as worker,
    ):
        limiter = make_limiter(store, limit)
        worker.wait_ready()
        worker.kill()
        killed = time.monotonic()
        remaining = [limiter.sync.peek("k").remaining]
        assert remaining[0] < 1000
        while remaining[-1] < 1000:
            time.sleep(0.01)
            remaining.append(limiter.sync.peek("k").remaining)
        lost_seconds = (1000 - remaining[0]) / 1000
        assert_within(
            time.monotonic() - killed, 1.0 + lost_seconds + MARGIN_SECONDS, "the return of its tokens"
        )


def test_worker__exits__returns_the_rest_of_its_lease(state: str) -> None:
    limit = {"rate": 0.001, "capacity": 1000, "lease": 10}
    with (
        open_state(state) as store,
        Worker("hold_lease", number=0, url=with_long_timeout(state), limit=limit, calls=200) as worker,
    ):
        lease = worker.wait_ready().go().result()
        assert lease["remaining"] > 0
        worker.process.wait()
        assert make_limiter(store, limit).sync.peek("k").remaining == 1000 - lease["granted"]


def test_worker__busy_among_nine_idle_ones__gets_the_whole_limit(state: str) -> None:
    """All workers have acquired before and are alive."""
    with ExitStack() as ends:
        idle = ends.enter_context(
            start_workers(9, "hold_lease", url=with_long_timeout(state), limit=FAST, calls=50)
        )
        busy = ends.enter_context(
            start_workers(1, "hammer", url=with_long_timeout(state), limit=FAST, seconds=1.0)
        )
        results: list[dict[str, Any]] = run_together(busy)
        assert all(worker.process.poll() is None for worker in idle)
    active, _ = active_seconds(results)
    if len(all_grants(results)) < 0.9 * 1000 * active:
        raise Late(f"{len(all_grants(results))} granted in {active:.3f} s")


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_child_process__parent_holds_a_lease__inherits_no_tokens(state: str, how: str) -> None:
    limit = {"rate": 20 / 3600, "capacity": 20, "lease": 10}
    with start_workers(
        1, "fork_and_call", url=with_long_timeout(state), limit=limit, calls=20, how=how
    ) as workers:
        [result] = run_together(workers)
    assert result.pop("granted") <= 20
    assert result == {"status": 0, "after": True}
