"""A program: coroutines are thrown away by the collector while every lock of ours is held by its thread.

Their event loops were closed over them. Whoever waits for a lock then waits for himself; a watchdog ends it.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
from _thread import LockType
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.support import comes_true

from comporta.breaker.breaker import CircuitBreaker
from comporta.limits.limiter import TokenBucketLimiter
from comporta.limits.permits import ConcurrencyLimit
from comporta.limits.waiting import Ticket
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.throttle.throttle import HierarchicalThrottle
from comporta.stores.memory import MemoryStore
from comporta.upstream.upstream import Upstream

WATCHDOG_SECONDS = 100.0
SOMETHING_ELSE = 3600.0


def locks() -> list[LockType]:
    """Return every lock of an object or a module of ours, but for bells.

    Nor those of tickets: whoever holds one has the ticket, and with it the coroutine, which so is no garbage.
    """
    ours = [
        thing
        for thing in gc.get_objects()
        if _name(thing).startswith("comporta") and not isinstance(thing, Ticket)
    ]
    found = [getattr(thing, name, None) for thing in ours for name in ("_lock", "lock", "_views_lock")]
    return [lock for lock in found if isinstance(lock, LockType)]


def _name(thing: object) -> str:
    return thing.__name__ if isinstance(thing, ModuleType) else type(thing).__module__ or ""


@contextmanager
def all_held() -> Iterator[None]:
    taken = [lock for lock in locks() if lock.acquire(blocking=False)]
    assert len(taken) > 3
    try:
        yield
    finally:
        for lock in taken:
            lock.release()


def thrown_away(begun: list[Coroutine[Any, Any, Any]], then: Callable[[], object] = int) -> None:
    """Have coroutines begin in a loop, close it over them, and collect them with all locks held."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    tasks = [loop.create_task(one) for one in begun]
    loop.run_until_complete(asyncio.sleep(0.05))
    assert not any(task.done() for task in tasks)
    loop.close()
    del loop, tasks
    begun.clear()
    then()
    with all_held():
        gc.collect()


async def long(*_: object) -> None:
    await asyncio.sleep(SOMETHING_ELSE)


def limiter() -> None:
    limit = TokenBucketLimiter("1/hour", MemoryStore(), "a")
    assert limit.sync.acquire()
    thrown_away([limit.acquire(timeout=7200) for _ in range(100)], limit.sync.acquire)
    comes_true(lambda: not limit.verbs.lines.by_key)


def permits() -> None:
    limit = ConcurrencyLimit("b", 1, state=MemoryStore())

    async def holding() -> None:
        async with limit.slot():
            await long()

    thrown_away([holding(), limit.acquire(timeout=7200)], limit.sync.acquire)
    comes_true(lambda: limit.sync.in_use() == 0)


def throttle() -> None:
    both = HierarchicalThrottle(1, 1, per=3600, state=MemoryStore())
    assert both.sync.acquire("one")

    def strike() -> None:
        for partition in ("one", "two"):
            both.sync.acquire(partition, timeout=0.01)

    thrown_away([both.acquire("one", timeout=7200), both.acquire("two", timeout=7200)], strike)
    comes_true(lambda: not both.statistics().waiting)


def breaker() -> None:
    circuit = CircuitBreaker("c", state=MemoryStore())

    @circuit
    async def guarded() -> None:
        await long()

    async def within() -> None:
        async with circuit:
            await long()

    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    thrown_away([guarded(), within()])
    comes_true(lambda: metrics.value("breaker_calls", breaker="c", outcome="cancelled") == 2)
    use_metrics(before)


def upstream() -> None:
    called = Upstream("d", "100/s", max_concurrent=2, timeout=None, state=MemoryStore())
    permits = called.permits
    assert permits is not None
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    thrown_away([called.call(long) for _ in range(2)])
    comes_true(lambda: permits.sync.in_use() == 0)
    use_metrics(before)


if __name__ == "__main__":
    gc.disable()
    faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True)
    for story in (limiter, permits, throttle, breaker, upstream):
        story()
