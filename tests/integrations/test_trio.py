"""comporta under trio: what has to wait says that it needs asyncio. anyio on asyncio works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
import trio
from tests.support import shared_store

from comporta import (
    Channel,
    CircuitBreaker,
    ConcurrencyLimit,
    LimitGroup,
    Retry,
    TokenBucketLimiter,
    Upstream,
)
from comporta.flow import MissingLoopError, running_loop
from comporta.stores.memory import MemoryStore
from comporta.testing import Server

THIS_IS_TRIO = r"needs asyncio, and this is trio: .* trio\.to_thread\.run_sync\(limiter\.sync\.acquire, key\)"


async def nothing() -> None: ...


async def fail() -> None:
    raise ConnectionError


def used_up() -> TokenBucketLimiter:
    limiter = TokenBucketLimiter("1/s burst 1", MemoryStore(), "used-up")
    assert limiter.sync.acquire()
    return limiter


def exhausted_limit() -> ConcurrencyLimit:
    permits = ConcurrencyLimit("taken", 1, state=MemoryStore())
    assert permits.sync.acquire()
    return permits


def upstream(**options: Any) -> Upstream:
    return Upstream("portal", limit="100/s", state=MemoryStore(), **options)


WAITS: dict[str, Callable[[], Awaitable[object]]] = {
    "limiter": lambda: used_up().acquire(timeout=5),
    "group": lambda: LimitGroup(used_up()).acquire([None], timeout=5),
    "permits": lambda: exhausted_limit().acquire(timeout=5),
    "retry": lambda: Retry(retries=1).call(fail),
    "upstream": lambda: upstream(timeout=5).call(nothing),
    "channel": lambda: Channel(1).receive(),
}


@pytest.mark.parametrize("kind", WAITS)
def test_trio__something_has_to_wait__says_that_it_needs_asyncio(kind: str) -> None:
    with pytest.raises(RuntimeError, match=THIS_IS_TRIO):
        trio.run(WAITS[kind])


def test_trio__server_decides__says_that_it_needs_asyncio(valkey: Server) -> None:
    limiter = TokenBucketLimiter("5/s", f"{valkey.url}?timeout=5", "trio")
    for use in (limiter.acquire, limiter.decide):
        with pytest.raises(RuntimeError, match=THIS_IS_TRIO):
            trio.run(use)
    limiter.store.close()


def test_trio__upstream_with_a_timeout__does_not_count_a_failure() -> None:
    portal = upstream(timeout=5, breaker=CircuitBreaker("portal", threshold=1, state=MemoryStore()))
    for _ in range(3):
        with pytest.raises(MissingLoopError):
            trio.run(portal.call, nothing)
    assert portal.sync.call(lambda: "called") == "called"


def test_trio__blocking_methods_on_a_thread__work() -> None:
    limiter = TokenBucketLimiter("100/s burst 1", MemoryStore(), "threads")

    async def use() -> list[bool]:
        return [await trio.to_thread.run_sync(limiter.sync.acquire, None, 1, 5.0) for _ in range(3)]

    assert trio.run(use) == [True, True, True]


def test_trio__decision_in_this_process__needs_no_loop() -> None:
    limiter = TokenBucketLimiter("1/s burst 1", MemoryStore(), "at-once")
    assert trio.run(limiter.acquire) is True
    assert trio.run(limiter.acquire) is False


def test_anyio__on_asyncio__works() -> None:
    with shared_store() as store:
        limiter = TokenBucketLimiter("100/s burst 1", store, "anyio")
        portal = Upstream("portal", limit="100/s", state=store, timeout=5)

        async def use() -> list[bool]:
            granted: list[bool] = []

            async def acquire() -> None:
                granted.append(await limiter.acquire(timeout=30))

            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(acquire)
            await portal.call(nothing)
            return granted

        assert anyio.run(use, backend="asyncio") == [True, True, True]


def test_running_loop__neither_asyncio_nor_trio__says_what_to_use() -> None:
    with pytest.raises(MissingLoopError, match=r"needs a running asyncio event loop: use asyncio\.run"):
        running_loop()
