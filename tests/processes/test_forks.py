"""Forks, spawned children and threads share a limit exactly, and harm nobody when they end."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.processes.fleet import opened, patient, started, together
from tests.processes.jobs import limiter_of

from comporta import BaseLimiter
from comporta.testing import Server

TWENTY_PER_HOUR = {"rate": 20 / 3600, "capacity": 20}
THREADS = 8


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_child_process__asks_at_the_same_time_as_its_parent__they_share_one_limit(
    state: str, how: str
) -> None:
    with started(1, "fork_and_call", url=patient(state), limit=TWENTY_PER_HOUR, calls=20, how=how) as workers:
        [answer] = together(workers)
    assert answer == {"granted": 20, "status": 0, "after": True}


def test_fork__inside_an_event_loop__both_sides_go_on_awaiting_one_limit(state: str) -> None:
    with started(1, "fork_from_a_loop", url=patient(state)) as workers:
        [answer] = together(workers)
    assert answer == {"granted": 20}


def test_fork__while_a_thread_of_the_parent_waits_in_line__serves_the_child(state: str) -> None:
    with started(1, "fork_in_mid_wait", url=patient(state)) as workers:
        [answer] = together(workers)
    assert answer == {"child": 0, "parent served": True}


def test_fork__while_threads_of_the_parent_hammer__leaves_the_child_no_lock_that_nobody_frees(
    state: str,
) -> None:
    with started(1, "fork_under_load", url=patient(state), forks=20) as workers:
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


def test_event_loops_of_many_threads__coming_and_going__disturb_no_other(redis_server: Server) -> None:
    """Each has a connection of its own, all kept in one place, and threads give way all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for round_ in range(5):
            with opened(redis_server.url) as store:
                limiter = limiter_of(store, TWENTY_PER_HOUR)
                assert granted_to_loops(limiter, f"k{round_}", 24) == 20
    finally:
        sys.setswitchinterval(interval)


def granted_to_loops(limiter: BaseLimiter, key: str, count: int) -> int:
    """Ask once from each of many event loops, each in a thread of its own, at the same time."""
    start = threading.Barrier(count)

    async def ask() -> bool:
        try:
            start.wait()
            return await limiter.acquire(key)
        finally:
            await limiter.aclose()

    with ThreadPoolExecutor(count) as threads:
        return sum(threads.map(lambda _: asyncio.run(ask()), range(count)))


def test_memory__threads_asking_at_the_same_time__share_one_limit() -> None:
    limiter = BaseLimiter("2000/hour")
    with ThreadPoolExecutor(THREADS) as threads:
        granted = threads.map(lambda _: sum(limiter.sync.acquire("k") for _ in range(1000)), range(THREADS))
        assert sum(granted) == 2000
