"""Upstreams used from the threads of an executor, and from ``run_in_executor`` of an event loop."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, Lock

import pytest
import requests

from comporta import CallReport, LimitReachedError, Retry, Upstream, current_attempt, last_call
from comporta.stores.registry import close_stores
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server, SimulatedUpstream

THREADS = 8


@pytest.fixture(params=["memory", "shared", "redis"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    server: Server | None = request.getfixturevalue("valkey") if request.param == "redis" else None
    yield f"{server.url}?timeout=5" if server else f"{request.param}://{name}"
    close_stores()
    shutil.rmtree(directory_path(name), ignore_errors=True)


def unique() -> str:
    return f"pncp-{uuid.uuid4().hex}"


class InFlight:
    """Counts calls in flight, and the most there were."""

    def __init__(self) -> None:
        self._lock = Lock()
        self.now = self.most = 0

    def call(self, number: int) -> int:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        with self._lock:
            self.now -= 1
        return number


def test_executor__many_threads__share_limit_and_permits(state: str) -> None:
    upstream, calls = Upstream(unique(), "20/hour", max_wait=30, max_concurrent=3, state=state), InFlight()
    with ThreadPoolExecutor(THREADS) as pool, upstream.sync as blocking:
        results = list(pool.map(lambda number: blocking.call(calls.call, number), range(20)))
    assert results == list(range(20))
    assert 1 <= calls.most <= 3
    assert upstream.sync.get_state().limiter.tokens_available == 0


def test_executor__limit_used_up__refuses_the_rest_in_each_thread(state: str) -> None:
    upstream = Upstream(unique(), "5/hour", max_wait=0, state=state)

    def outcome(_: int) -> str:
        with suppress(LimitReachedError):
            upstream.sync.call(lambda: None)
        report = last_call()
        assert report is not None
        return report.outcome  # of this thread's own call

    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(outcome, range(20)))
    assert (outcomes.count("ok"), outcomes.count("limited")) == (5, 15)


def test_executor__retries_in_several_threads__have_numbers_of_their_own(state: str) -> None:
    retry = Retry(base=0.001, jitter=(0, 0.001), budget=None)
    upstream, together = (
        Upstream(unique(), "1000/s", breaker=False, retry=retry, state=state),
        Barrier(THREADS),
    )

    def count_attempts(_: int) -> list[int]:
        numbers: list[int] = []

        def fail_twice() -> None:
            numbers.append(current_attempt())
            if len(numbers) < 3:
                raise OSError("no route")

        together.wait(timeout=60)
        upstream.sync.call(fail_twice)
        return numbers

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(count_attempts, range(THREADS))) == [[1, 2, 3]] * THREADS


def test_run_in_executor__blocking_client__shares_the_upstream_with_the_loop(
    state: str, upstream_server: SimulatedUpstream
) -> None:
    upstream = Upstream(unique(), "20/hour", max_wait=30, max_concurrent=3, state=state)

    def get(page: int) -> int:
        with requests.Session() as session:
            session.mount("http://", upstream.sync.adapter())
            return session.get(f"{upstream_server.url}/pages/{page}").status_code

    async def answer() -> int:
        await asyncio.sleep(0)
        return 200

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(THREADS) as pool:
            blocking = [loop.run_in_executor(pool, get, page) for page in range(10)]
            awaited = [upstream.call(answer) for _ in range(10)]
            statuses = await asyncio.gather(*blocking, *awaited)
        assert (await upstream.get_state()).limiter.tokens_available == 0
        await upstream.aclose()
        return statuses

    assert asyncio.run(main()) == [200] * 20


@pytest.fixture
def upstream_server() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream(rate=1000, burst=1000) as server:
        yield server


def test_to_thread__context__copies_in_but_not_out() -> None:
    upstream = Upstream(unique(), "10/s", state="memory://")

    def call_again(outer: CallReport) -> None:
        assert last_call() is outer
        upstream.sync.call(lambda: None)
        assert last_call() is not outer

    async def main() -> None:
        await upstream.call(asyncio.sleep, 0)
        own = last_call()
        assert own is not None
        await asyncio.to_thread(call_again, own)
        assert last_call() is own  # the other report belongs to the thread's copy of the context

    asyncio.run(main())
