"""Forks, spawned children and threads share a limit exactly, and harm nobody when they end."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.processes.fleet import opened, started, together
from tests.processes.jobs import limiter_of

from comporta import BaseLimiter

TWENTY_PER_HOUR = {"rate": 20 / 3600, "capacity": 20}
THREADS = 8


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_child_process__asks_at_the_same_time_as_its_parent__they_share_one_limit(
    state: str, how: str
) -> None:
    with started(1, "fork_and_call", url=state, limit=TWENTY_PER_HOUR, calls=20, how=how) as workers:
        [answer] = together(workers)
    assert answer == {"granted": 20, "status": 0, "after": True}


def test_fork__inside_an_event_loop__both_sides_go_on_awaiting_one_limit(state: str) -> None:
    with started(1, "fork_from_a_loop", url=state) as workers:
        [answer] = together(workers)
    assert answer == {"granted": 20}


def test_fork__while_a_thread_of_the_parent_waits_in_line__serves_the_child(state: str) -> None:
    with started(1, "fork_in_mid_wait", url=state) as workers:
        [answer] = together(workers)
    assert answer == {"child": 0, "parent served": True}


def test_fork__while_threads_of_the_parent_hammer__leaves_the_child_no_lock_that_nobody_frees(
    state: str,
) -> None:
    with started(1, "fork_under_load", url=state, forks=20) as workers:
        [answer] = together(workers)
    assert answer == {"children": [0] * 20}


def test_threads__asking_at_the_same_time__share_one_limit(state: str) -> None:
    with opened(state) as store, ThreadPoolExecutor(THREADS) as threads:
        limiter = limiter_of(store, TWENTY_PER_HOUR)
        start = threading.Barrier(THREADS)

        def ask(_: int) -> int:
            start.wait()
            return sum(limiter.sync.acquire("k") for _ in range(10))

        assert sum(threads.map(ask, range(THREADS))) == 20
        assert limiter.sync.peek("k").remaining == 0


def test_event_loops_of_several_threads__asking_at_the_same_time__share_one_limit(state: str) -> None:
    with opened(state) as store, ThreadPoolExecutor(THREADS) as threads:
        limiter = limiter_of(store, TWENTY_PER_HOUR)
        start = threading.Barrier(THREADS)

        async def ask_all() -> int:
            try:
                start.wait()
                return sum(await asyncio.gather(*(limiter.acquire("k") for _ in range(10))))
            finally:
                await limiter.aclose()

        assert sum(threads.map(lambda _: asyncio.run(ask_all()), range(THREADS))) == 20


def test_memory__threads_asking_at_the_same_time__share_one_limit() -> None:
    limiter = BaseLimiter("2000/hour")
    with ThreadPoolExecutor(THREADS) as threads:
        granted = threads.map(lambda _: sum(limiter.sync.acquire("k") for _ in range(1000)), range(THREADS))
        assert sum(granted) == 2000
