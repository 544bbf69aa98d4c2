"""A program in which the garbage collector closes coroutines while their thread holds every lock of comporta.

The event loops of the coroutines are closed before they end, as in a program that exits early. A coroutine
that then waits for a lock would wait for its own thread: a deadlock, which a watchdog turns into a failure.
``tests/test_threads.py`` runs this program.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
from _thread import LockType
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import httpx2
from tests.support import wait_until

from comporta.breaker.breaker import CircuitBreaker
from comporta.limits.concurrency.limit import ConcurrencyLimit
from comporta.limits.limiter import TokenBucketLimiter
from comporta.limits.wait_queue import Waiter
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.throttle.throttle import HierarchicalThrottle
from comporta.stores.memory import MemoryStore
from comporta.upstream.upstream import Upstream

WATCHDOG_SECONDS = 100.0
TICKS = 100
"""How many turns of the event loop every coroutine gets before its loop is closed."""


def locks() -> list[LockType]:
    """Return the locks of all objects and modules of comporta.

    Without those of ``threads``, which coordinate the cleanup itself, and those of waiters: code that holds
    the lock of a waiter also refers to its coroutine, which therefore is not garbage.
    """
    owners = [
        owner
        for owner in gc.get_objects()
        if _module_name(owner).startswith("comporta.") and not isinstance(owner, Waiter)
    ]
    values = [
        value
        for owner in owners
        for value in (
            vars(owner).values()
            if isinstance(owner, ModuleType)
            else (getattr(owner, name, None) for name in ("_lock", "lock"))
        )
    ]
    return [value for value in values if isinstance(value, LockType)]


def _module_name(owner: object) -> str:
    name = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__ or ""
    return "" if name == "comporta.threads" else name


@contextmanager
def all_locks_held() -> Iterator[None]:
    held = [lock for lock in locks() if lock.acquire(blocking=False)]
    assert len(held) > 3
    try:
        yield
    finally:
        for lock in held:
            lock.release()


def abandon(coroutines: list[Coroutine[Any, Any, Any]], then: Callable[[], object] = int) -> None:
    """Start coroutines on an event loop, close the loop, and collect them while holding all locks."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    tasks = [loop.create_task(each) for each in coroutines]
    for _ in range(TICKS):
        loop.run_until_complete(asyncio.sleep(0))
    assert not any(task.done() for task in tasks)
    loop.close()
    del loop, tasks
    coroutines.clear()
    then()
    with all_locks_held():
        gc.collect()


async def never_end(*_: object) -> None:
    await asyncio.Event().wait()


def limiter() -> None:
    limit = TokenBucketLimiter("1/hour", MemoryStore(), "a")
    assert limit.sync.acquire()
    abandon([limit.acquire(timeout=1_000_000) for _ in range(100)], limit.sync.acquire)
    wait_until(lambda: not limit._flows.wait_queue.waiters_by_key)


def permits() -> None:
    limit = ConcurrencyLimit("b", 1, state=MemoryStore())

    async def hold_permit() -> None:
        async with limit.slot():
            await never_end()

    abandon([hold_permit(), limit.acquire(timeout=7200)], limit.sync.acquire)
    wait_until(lambda: limit.sync.in_use() == 0)


def throttle() -> None:
    both = HierarchicalThrottle(1, 1, per=3600, state=MemoryStore())
    assert both.sync.acquire("one")

    def acquire_both() -> None:
        for partition in ("one", "two"):
            both.sync.acquire(partition, timeout=0.01)

    abandon([both.acquire("one", timeout=7200), both.acquire("two", timeout=7200)], acquire_both)
    wait_until(lambda: not both.statistics().waiting)


def breaker() -> None:
    circuit = CircuitBreaker("c", state=MemoryStore())

    @circuit
    async def guarded() -> None:
        await never_end()

    async def guarded_block() -> None:
        async with circuit.admit():
            await never_end()

    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    abandon([guarded(), guarded_block()])
    wait_until(lambda: metrics.value("breaker_calls", breaker="c", outcome="cancelled") == 2)
    use_metrics(before)


def streams() -> None:
    circuit = CircuitBreaker("e", state=MemoryStore())

    @circuit
    def stream() -> Iterator[int]:
        yield 1

    @circuit
    async def stream_async() -> AsyncIterator[int]:
        yield 1

    @circuit
    def failing_stream() -> Iterator[int]:
        try:
            yield 1
        finally:
            raise OSError("not even its end succeeds")

    async def start(begun: AsyncIterator[int]) -> None:
        await anext(begun)

    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    begun, failing, begun_async, loop = stream(), failing_stream(), stream_async(), asyncio.new_event_loop()
    next(begun)
    next(failing)
    loop.run_until_complete(start(begun_async))
    loop.close()
    with all_locks_held():
        del begun, failing, begun_async
        gc.collect()
    wait_until(lambda: metrics.value("breaker_calls", breaker="e", outcome="success") == 2)
    wait_until(lambda: metrics.value("breaker_calls", breaker="e", outcome="failure") == 1)
    use_metrics(before)


def upstream() -> None:
    called = Upstream("d", "100/s", max_concurrent=2, timeout=None, state=MemoryStore())
    permits = called.permits
    assert permits is not None
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    abandon([called.call(never_end) for _ in range(2)])
    wait_until(lambda: permits.sync.in_use() == 0)
    use_metrics(before)


def bodies() -> None:
    """Drop a response and a generator that are in progress, in reference cycles."""
    called = Upstream("e", "100/s", max_concurrent=2, state=MemoryStore())
    permits = called.permits
    assert permits is not None

    class EndlessStream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            while True:
                yield b"part"

    inner = httpx2.MockTransport(lambda _: httpx2.Response(200, stream=EndlessStream()))
    client = httpx2.Client(transport=called.sync.transport(inner))

    @called.guard
    def items() -> Iterator[int]:
        while True:
            yield 1

    def start_response() -> Iterator[bytes]:
        parts = client.send(client.build_request("GET", "http://127.0.0.1/"), stream=True).iter_raw()
        assert next(parts) == b"part"
        return parts

    def start_both() -> None:
        generator = items()
        assert next(generator) == 1
        cycle: list[object] = [start_response(), generator]
        cycle.append(cycle)

    start_both()
    assert permits.sync.in_use() == 2
    with all_locks_held():
        gc.collect()
    wait_until(lambda: permits.sync.in_use() == 0)

    parts = start_response()
    with all_locks_held():
        del parts  # the collector may also destroy the iterator before the body that it reads
    wait_until(lambda: permits.sync.in_use() == 0)


if __name__ == "__main__":
    gc.disable()
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    for scenario in (limiter, permits, throttle, breaker, streams, upstream, bodies):
        scenario()
