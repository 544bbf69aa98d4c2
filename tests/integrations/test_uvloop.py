"""The main parts on uvloop's event loop: limiters, upstreams with a real client and server, and the cache."""

from __future__ import annotations

import asyncio
import shutil
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvloop
from tests.support import within

from comporta import (
    BreakerConfig,
    CircuitBreaker,
    CircuitOpenError,
    ConcurrencyLimit,
    HealthCache,
    Retry,
    TokenBucketLimiter,
    Upstream,
)
from comporta.stores.registry import close_stores
from comporta.stores.shared.directory import directory_path
from comporta.testing import Server, SimulatedUpstream

Run = Callable[[Coroutine[Any, Any, Any]], Any]


@pytest.fixture
def run() -> Iterator[Run]:
    """Return what runs a coroutine on one uvloop event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert type(runner.get_loop()) is uvloop.Loop
        yield runner.run


@pytest.fixture(params=["shared", "redis"])
def state(request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex}"
    server: Server | None = request.getfixturevalue("valkey") if request.param == "redis" else None
    yield f"{server.url}?timeout=5" if server else f"shared://{name}"
    close_stores()
    shutil.rmtree(directory_path(name), ignore_errors=True)


def unique() -> str:
    return f"pncp-{uuid.uuid4().hex}"


def test_limiter__many_tasks__grants_exactly_its_capacity(run: Run, state: str) -> None:
    limiter = TokenBucketLimiter("20/hour", state, unique())

    async def main() -> list[bool]:
        granted = await asyncio.gather(*(limiter.acquire() for _ in range(50)))
        await limiter.aclose()
        return granted

    assert sum(run(main())) == 20


def test_limiter__waiting_callers__are_served_in_order(run: Run, state: str) -> None:
    limiter, order = TokenBucketLimiter("100/s burst 1", state, unique()), []

    async def wait(number: int) -> None:
        assert await limiter.acquire(timeout=30)
        order.append(number)

    async def main() -> None:
        await asyncio.gather(*(wait(number) for number in range(10)))
        await limiter.aclose()

    run(main())
    assert order == list(range(10))


def test_concurrency_limit__many_tasks__bounds_those_in_flight(run: Run, state: str) -> None:
    limit, running, most = ConcurrencyLimit(unique(), 3, state=state), 0, 0

    async def hold() -> None:
        nonlocal running, most
        async with limit.slot(timeout=30):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    async def main() -> None:
        await asyncio.gather(*(hold() for _ in range(12)))
        await limit.store.aclose()

    run(main())
    assert 1 <= most <= 3
    assert running == 0


def test_breaker__failures__open_it_and_refuse(run: Run, state: str) -> None:
    breaker = CircuitBreaker(unique(), threshold=2, state=state)

    @breaker
    async def fetch() -> None:
        raise OSError("no route")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(OSError, match="no route"):
                await fetch()
        with pytest.raises(CircuitOpenError):
            await fetch()
        await breaker.aclose()

    run(main())


def test_upstream__httpx2_client__retries_and_reports(
    run: Run, state: str, simulated_rates: SimulatedUpstream
) -> None:
    retry = Retry(base=0.01, jitter=(0, 0.01))
    upstream = Upstream(unique(), "1000/s", max_concurrent=4, retry=retry, state=state)

    async def main() -> list[httpx2.Response]:
        async with (
            upstream,
            httpx2.AsyncClient(transport=upstream.transport(), base_url=simulated_rates.url) as client,
        ):
            return await asyncio.gather(*(client.get(f"/pages/{page}") for page in range(8)))

    responses = run(main())
    assert [response.status_code for response in responses] == [200] * 8
    assert all(response.extensions["comporta"].outcome == "ok" for response in responses)


@pytest.fixture
def simulated_rates() -> Iterator[SimulatedUpstream]:
    with SimulatedUpstream(rate=1000, burst=1000) as server:
        yield server


def test_upstream__call_that_hangs__ends_at_its_timeout(run: Run, state: str) -> None:
    upstream = Upstream(
        unique(), "10/s", timeout=0.05, retry=False, breaker=BreakerConfig(threshold=1), state=state
    )

    async def hang() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        with within(5), pytest.raises(TimeoutError):
            await upstream.call(hang)
        with pytest.raises(CircuitOpenError):
            await upstream.call(hang)
        await upstream.aclose()

    run(main())


def test_upstream__cancelled_call__gives_back_its_permit(run: Run, state: str) -> None:
    upstream = Upstream(unique(), "10/s", max_concurrent=1, state=state)

    async def main() -> None:
        started = asyncio.Event()

        async def hang() -> None:
            started.set()
            await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(upstream.call(hang))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await upstream.get_state()).calls_in_flight == 0
        await upstream.aclose()

    run(main())


def test_cache__many_tasks__load_a_value_once(run: Run, tmp_path: Path) -> None:
    loads = []

    async def load() -> str:
        loads.append(time.monotonic())
        await asyncio.sleep(0)
        return "rows"

    async def main() -> list[Any]:
        async with HealthCache(f"sqlite:///{tmp_path / 'cache.db'}") as cache:
            fetched = await asyncio.gather(*(cache.fetch("user", {"q": 1}, load) for _ in range(10)))
            return [each.value for each in fetched]

    assert run(main()) == ["rows"] * 10
    assert len(loads) == 1
