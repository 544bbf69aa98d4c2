"""A read that has to wait: its time-out starts with the wait, and reaches the code that waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from comporta import Upstream
from comporta.stores.memory import MemoryStore
from comporta.upstream.body import StartedAwait

SHORT = 0.02


def test_read__handles_its_cancellation__returns_what_it_yields(store: MemoryStore) -> None:
    upstream = Upstream("handles", "1000/s", timeout=SHORT, state=store)

    @upstream.guard
    async def items() -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield 2

    async def read() -> list[int]:
        stream = items()
        return [await anext(stream), await anext(stream)]

    assert asyncio.run(read()) == [1, 2]


def test_read__waits_again_during_its_cleanup__is_cleaned_up_and_late(store: MemoryStore) -> None:
    upstream = Upstream("cleans-up", "1000/s", timeout=SHORT, state=store)
    cleaned: list[bool] = []

    @upstream.guard
    async def items() -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async def read() -> list[int]:
        return [item async for item in items()]

    with pytest.raises(TimeoutError, match=r"longer than the time-out of 0.02 s"):
        asyncio.run(read())
    assert cleaned == [True]


def test_started_await__closed_while_it_waits__closes_what_it_waits_for() -> None:
    closed: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def go_on() -> None:
        steps = wait().__await__()
        await StartedAwait(steps, next(steps))

    async def start_and_close() -> None:
        coroutine = go_on()
        coroutine.send(None)
        coroutine.close()

    asyncio.run(start_and_close())
    assert closed == [True]
