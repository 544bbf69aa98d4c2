"""Lines of those who wait: whoever cannot be woken any more is in nobody's way."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from comporta import BaseLimiter, LimitConfig
from comporta.limits.permits import ConcurrencyLimit
from comporta.limits.waiting import Lines
from comporta.stores.memory import MemoryStore


@contextmanager
def left_waiting(*waits: Callable[[], Awaitable[Any]]) -> Iterator[None]:
    """Have some wait in an event loop that is closed over them, as a program in a hurry does."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it says that a task was destroyed
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


def test_permits__a_waiter_whose_loop_was_closed__keeps_nobody_out() -> None:
    limit = ConcurrencyLimit("pncp", 1, state=MemoryStore())
    permit = limit.sync.acquire()
    assert permit is not None
    with left_waiting(lambda: limit.acquire(None), lambda: limit.acquire(None)):
        limit.sync.release(permit)
        for timeout in (0, 5):
            permit = limit.sync.acquire(timeout)
            assert permit is not None
            limit.sync.release(permit)


def test_limiter__a_waiter_whose_loop_was_closed__keeps_nobody_out() -> None:
    idle = BaseLimiter(LimitConfig(rate=10, capacity=1), MemoryStore(), "pncp")
    assert idle.sync.acquire()
    with left_waiting(lambda: idle.acquire(timeout=None)):
        idle.sync.release()
        assert idle.sync.acquire(timeout=0)
        assert idle.sync.acquire(timeout=5)


def test_line__a_loop_closed_just_before_it_is_called__calls_the_next() -> None:
    lines, called = Lines(), []
    first, second = lines.join("key"), lines.join("key")
    assert first is not None
    assert second is not None

    def closed() -> None:
        raise RuntimeError("Event loop is closed")

    first.listen(closed)
    second.listen(lambda: called.append("second"))
    lines.call_first("key")
    assert called == ["second"]
    assert lines.is_first("key", second)
    lines.leave("key", first)  # what is left of its coroutine is thrown away at last
    lines.leave("key", second)
    assert lines.is_empty("key")
