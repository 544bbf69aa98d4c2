"""From a source to the event loop: what is left when nobody reads on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from comporta import Channel, Pipeline
from comporta.pipeline.runs.reading import reading_of


async def silent() -> AsyncIterator[int]:
    await asyncio.sleep(60)
    yield 1


def test_stop__before_anything_was_asked__gives_nothing() -> None:
    async def main() -> None:
        for source in (silent(), Channel(), [1, 2]):
            reading = await reading_of(source, 10)
            reading.stop()
            with pytest.raises(StopAsyncIteration):
                await anext(reading)

    asyncio.run(main())


def test_next__cancelled__is_cancelled() -> None:
    async def main() -> None:
        for source in (silent(), Channel()):
            reading = await reading_of(source, 10)
            asking = asyncio.ensure_future(anext(reading))
            await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())


def test_stop__while_somebody_waits__gives_nothing_more() -> None:
    async def main() -> None:
        for source in (silent(), Channel()):
            reading = await reading_of(source, 10)
            asking = asyncio.ensure_future(anext(reading))
            await asyncio.sleep(0.01)
            reading.stop()
            with pytest.raises(StopAsyncIteration):
                await asking

    asyncio.run(main())


def test_key__of_an_unreadable_line__is_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"k": 1}\nnonsense\n')
    pipeline = Pipeline(path, lambda item: None, key=lambda item: item["k"], dead_letters=tmp_path / "dead")
    report = pipeline.sync.run()
    assert (report.done, report.dead) == (2, 1)
