"""Forked and spawned processes and threads share a limit exactly, and may end without harm to others."""

from __future__ import annotations

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.processes.fleet import open_state, run_together, start_workers, with_long_timeout
from tests.processes.jobs import make_limiter

from comporta import BaseLimiter
from comporta.testing import Server

TWENTY_PER_HOUR = {"rate": 20 / 3600, "capacity": 20}
THREADS = 8


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_child_process__concurrent_with_its_parent__shares_one_limit(state: str, how: str) -> None:
    with start_workers(
        1, "fork_and_call", url=with_long_timeout(state), limit=TWENTY_PER_HOUR, calls=20, how=how
    ) as workers:
        [result] = run_together(workers)
    assert result == {"granted": 20, "status": 0, "after": True}


def test_fork__inside_an_event_loop__both_processes_share_one_limit(state: str) -> None:
    with start_workers(1, "fork_in_event_loop", url=with_long_timeout(state)) as workers:
        [result] = run_together(workers)
    assert result == {"granted": 20}


def test_fork__while_a_thread_of_the_parent_waits__serves_the_child(state: str) -> None:
    with start_workers(1, "fork_while_waiting", url=with_long_timeout(state)) as workers:
        [result] = run_together(workers)
    assert result == {"child": 0, "parent served": True}


def test_fork__while_threads_of_the_parent_acquire__leaves_no_locked_lock(
    state: str,
) -> None:
    with start_workers(1, "fork_under_load", url=with_long_timeout(state), forks=20) as workers:
        [result] = run_together(workers)
    assert result == {"children": [0] * 20}


def test_threads__concurrent__share_one_limit(state: str) -> None:
    with open_state(state) as store, ThreadPoolExecutor(THREADS) as threads:
        limiter = make_limiter(store, TWENTY_PER_HOUR)
        start = threading.Barrier(THREADS)

        def acquire_all(_: int) -> int:
            start.wait()
            return sum(limiter.sync.acquire("k") for _ in range(10))

        assert sum(threads.map(acquire_all, range(THREADS))) == 20
        assert limiter.sync.peek("k").remaining == 0


def test_event_loops__of_several_threads__share_one_limit(state: str) -> None:
    with open_state(state) as store, ThreadPoolExecutor(THREADS) as threads:
        limiter = make_limiter(store, TWENTY_PER_HOUR)
        start = threading.Barrier(THREADS)

        async def acquire_async() -> int:
            try:
                start.wait()
                return sum(await asyncio.gather(*(limiter.acquire("k") for _ in range(10))))
            finally:
                await limiter.aclose()

        assert sum(threads.map(lambda _: asyncio.run(acquire_async()), range(THREADS))) == 20


def test_event_loops__opened_and_closed__do_not_affect_others(redis_server: Server) -> None:
    """Each event loop has its own connection in one registry, while threads switch all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for round_ in range(5):
            with open_state(redis_server.url) as store:
                limiter = make_limiter(store, TWENTY_PER_HOUR)
                assert granted_to_loops(limiter, f"k{round_}", 24) == 20
    finally:
        sys.setswitchinterval(interval)


def granted_to_loops(limiter: BaseLimiter, key: str, count: int) -> int:
    """Acquire once from each of many event loops, each in its own thread, at the same time."""
    start = threading.Barrier(count)

    async def acquire_once() -> bool:
        try:
            start.wait()
            return await limiter.acquire(key)
        finally:
            await limiter.aclose()

    with ThreadPoolExecutor(count) as threads:
        return sum(threads.map(lambda _: asyncio.run(acquire_once()), range(count)))


def test_memory__concurrent_threads__share_one_limit() -> None:
    limiter = BaseLimiter("2000/hour")
    with ThreadPoolExecutor(THREADS) as threads:
        granted = threads.map(lambda _: sum(limiter.sync.acquire("k") for _ in range(1000)), range(THREADS))
        assert sum(granted) == 2000
