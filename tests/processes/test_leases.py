"""Leases among processes: the limit is kept, hardly anything is lost, the dead and idle hold up nobody."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest
from tests.processes.accounting import asked_seconds, check_bucket, check_window, granted
from tests.processes.fleet import Worker, opened, patient, started, together
from tests.processes.jobs import limiter_of
from tests.support import Late, hold_to

SECONDS = 2.0
AT_LEAST = 0.99
FAST = {"rate": 1000, "capacity": 1000, "lease": True}
MARGIN_SECONDS = 1.0
"""A machine of two cores that others use too."""


@pytest.mark.parametrize(("job", "burst"), [("hammer", 10), ("hammer", 1000), ("hammer_awaiting", 100)])
def test_token_bucket__leased_by_two_processes__grants_what_is_due(state: str, job: str, burst: int) -> None:
    limit = {"rate": 1000, "capacity": burst, "lease": True}
    with started(2, job, url=patient(state), limit=limit, seconds=SECONDS) as workers:
        answers = together(workers)
    print(check_bucket(answers, 1000, burst, AT_LEAST))  # noqa: T201


def test_sliding_window__leased_by_two_processes__is_never_exceeded(state: str) -> None:
    limit = {"rate": 1, "capacity": 500, "window": 0.5, "strategy": "sliding_window", "lease": True}
    with started(2, "hammer", url=patient(state), limit=limit, seconds=2.6 * 0.5) as workers:
        answers = together(workers)
    print(check_window(answers, 500, 0.5, 0.95))  # noqa: T201


def test_worker__killed_with_a_lease_in_hand__holds_up_nobody_for_longer_than_its_life(state: str) -> None:
    limit = {**FAST, "lease": 1.0}
    with (
        opened(state) as store,
        Worker("lease", number=0, url=patient(state), limit=limit, calls=200) as worker,
    ):
        limiter = limiter_of(store, limit)
        worker.ready()
        worker.kill()
        killed = time.monotonic()
        remaining = [limiter.sync.peek("k").remaining]
        assert remaining[0] < 1000
        while remaining[-1] < 1000:
            time.sleep(0.01)
            remaining.append(limiter.sync.peek("k").remaining)
        lost_seconds = (1000 - remaining[0]) / 1000
        hold_to(time.monotonic() - killed, 1.0 + lost_seconds + MARGIN_SECONDS, "what it held")


def test_worker__at_its_end__gives_back_what_it_has_in_hand(state: str) -> None:
    limit = {"rate": 0.001, "capacity": 1000, "lease": 10}
    with (
        opened(state) as store,
        Worker("lease", number=0, url=patient(state), limit=limit, calls=200) as worker,
    ):
        in_hand = worker.ready().go().answer()
        assert in_hand["left"] > 0
        worker.process.wait()
        assert limiter_of(store, limit).sync.peek("k").remaining == 1000 - in_hand["granted"]


def test_worker__busy_among_nine_idle_ones__gets_the_limit(state: str) -> None:
    """All have asked before, and are alive."""
    with ExitStack() as ends:
        idle = ends.enter_context(started(9, "lease", url=patient(state), limit=FAST, calls=50))
        busy = ends.enter_context(started(1, "hammer", url=patient(state), limit=FAST, seconds=1.0))
        answers: list[dict[str, Any]] = together(busy)
        assert all(worker.process.poll() is None for worker in idle)
    asked, _ = asked_seconds(answers)
    if len(granted(answers)) < 0.9 * 1000 * asked:
        raise Late(f"{len(granted(answers))} granted in {asked:.3f} s")


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_child_process__of_a_parent_with_a_lease__has_none_of_it(state: str, how: str) -> None:
    limit = {"rate": 20 / 3600, "capacity": 20, "lease": 10}
    with started(1, "fork_and_call", url=patient(state), limit=limit, calls=20, how=how) as workers:
        [answer] = together(workers)
    assert answer.pop("granted") <= 20
    assert answer == {"status": 0, "after": True}
