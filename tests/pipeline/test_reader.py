"""Readers of sources: what happens when they are stopped or cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comporta import Channel, Pipeline
from comporta.pipeline.run.reader import open_reader


async def silent() -> AsyncIterator[int]:
    await asyncio.Event().wait()
    yield 1


def test_stop__before_the_first_chunk__returns_no_entries() -> None:
    async def main() -> None:
        for source in (silent(), Channel(), [1, 2]):
            reader = await open_reader(source, 10)
            reader.stop()
            with pytest.raises(StopAsyncIteration):
                await anext(reader)

    asyncio.run(main())


def test_next_chunk__cancelled__is_cancelled() -> None:
    async def main() -> None:
        for source in (silent(), Channel()):
            reader = await open_reader(source, 10)
            pending = asyncio.ensure_future(anext(reader))
            for _ in range(5):  # it waits for the source by then
                await asyncio.sleep(0)
            pending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pending

    asyncio.run(main())


def test_stop__while_a_caller_waits__returns_no_entries() -> None:
    async def main() -> None:
        for source in (silent(), Channel()):
            reader = await open_reader(source, 10)
            pending = asyncio.ensure_future(anext(reader))
            for _ in range(5):  # it waits for the source by then
                await asyncio.sleep(0)
            reader.stop()
            with pytest.raises(StopAsyncIteration):
                await pending

    asyncio.run(main())


def test_with_key__invalid_line__does_not_call_the_key_function(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"k": 1}\nnonsense\n')
    pipeline = Pipeline(path, lambda item: None, key=lambda item: item["k"], dead_letters=tmp_path / "dead")
    report = pipeline.sync.run()
    assert (report.done, report.dead) == (2, 1)
