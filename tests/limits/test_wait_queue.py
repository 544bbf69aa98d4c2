"""Wait queues: a waiter that cannot be woken any more does not block the others."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from comporta import BaseLimiter, LimitConfig
from comporta.limits.concurrency.limit import ConcurrencyLimit
from comporta.limits.key import normalize_key
from comporta.limits.wait_queue import WaitQueue
from comporta.stores.memory import MemoryStore


@contextmanager
def left_waiting(*waits: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """Start waiters in an event loop, and close the loop while they wait."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it reports that a task was destroyed
    tasks = [loop.create_task(_waits(wait)) for wait in waits]
    for _ in range(3):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        del tasks
        gc.collect()


async def _waits(wait: Callable[[], Awaitable[Any]]) -> None:
    await wait()


def test_concurrency_limit__loop_of_a_waiter_closed__serves_the_next() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    permit = limit.sync.acquire()
    assert permit is not None
    with left_waiting(lambda: limit.acquire(None), lambda: limit.acquire(None)):
        limit.sync.release(permit)
        for timeout in (0, 5):
            permit = limit.sync.acquire(timeout)
            assert permit is not None
            limit.sync.release(permit)


def test_limiter__loop_of_a_waiter_closed__serves_the_next() -> None:
    idle = BaseLimiter(LimitConfig(rate=10, capacity=1), MemoryStore(), "pncp")
    assert idle.sync.acquire()
    with left_waiting(lambda: idle.acquire(timeout=None)):
        idle.sync.release()
        assert idle.sync.acquire(timeout=0)
        assert idle.sync.acquire(timeout=5)


def test_wait_queue__loop_closed_just_before_the_wake_up__wakes_the_next() -> None:
    queue, called = WaitQueue(), []
    first, second = queue.join("key"), queue.join("key")
    assert first is not None
    assert second is not None

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    first.listen(closed)
    second.listen(lambda: called.append("second"))
    queue.wake_first("key")
    assert called == ["second"]
    assert queue.is_first("key", second)
    queue.leave("key", first)  # its coroutine is garbage collected last
    queue.leave("key", second)
    assert queue.is_empty("key")


def test_queue__keys_in_any_form__are_found_while_callers_wait_for_them() -> None:
    queue, long = WaitQueue(), "x" * 5000
    assert queue.join("plain")
    assert [queue.may_have(key) for key in ("plain", "other", long, None)] == [True, False, False, False]
    assert queue.join(normalize_key(long))
    assert queue.join(normalize_key(None))
    assert [queue.may_have(key) for key in ("plain", "other", long, None)] == [True, False, True, True]
