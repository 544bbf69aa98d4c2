"""Pipelines: every item is done once, confirmed, and never lost on the way."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from comporta import Channel, Pipeline, Retry
from comporta.errors import (
    CheckpointError,
    DeadLettersFullError,
    PipelineError,
    SinkError,
    SinkRowError,
    SourceError,
)
from comporta.events import latest_events
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.run import executor
from comporta.pipeline.run.report import Report
from comporta.pipeline.run.sources import FileSource
from comporta.pipeline.sinks import Row

PATIENCE_SECONDS = 120.0


class MemorySink:
    """Stores rows in memory; waits while ``gate`` is not set, raises ``error`` if it is set."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.batches = 0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def open(self) -> None:
        """Need nothing."""

    def write(self, rows: Sequence[Row]) -> None:
        self.gate.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        self.check(rows)
        self.rows += [dict(row) for row in rows]
        self.batches += 1

    def check(self, rows: Sequence[Row]) -> None:
        """Accept all rows."""

    def close(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[Any]:
        return [row["id"] for row in self.rows]


class AsyncMemorySink(MemorySink):
    """The same as an asynchronous sink."""

    async def open(self) -> None:  # type: ignore[override]
        """Need nothing."""

    async def write(self, rows: Sequence[Row]) -> None:  # type: ignore[override]
        super().write(rows)

    async def close(self) -> None:  # type: ignore[override]
        super().close()


async def to_row(item: Any) -> Row:
    return {"id": item}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def until_async(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def dead_letters_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def list_source(tmp_path: Path) -> Any:
    return list(range(500))


def range_source(tmp_path: Path) -> Any:
    return range(500)


def generator_source(tmp_path: Path) -> Any:
    return (number for number in range(500))


async def _numbers() -> AsyncIterator[int]:
    for number in range(500):
        yield number
        await asyncio.sleep(0)


def async_source(tmp_path: Path) -> Any:
    return _numbers()


def file_source(tmp_path: Path) -> Any:
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(500)))
    return path


def channel_source(tmp_path: Path) -> Any:
    channel: Channel[int] = Channel(capacity=50)

    def fill() -> None:
        channel.sync.send_many(range(500))
        channel.close()

    threading.Thread(target=fill, daemon=True).start()
    return channel


SOURCES = [list_source, range_source, generator_source, async_source, file_source, channel_source]


@pytest.mark.unmeasured
@pytest.mark.parametrize("make_source", SOURCES)
@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_run__any_source_any_step__writes_every_item_once(
    make_source: Callable[[Path], Any], kind: str, tmp_path: Path
) -> None:
    sink = MemorySink()
    step: Any = to_row if kind == "async" else lambda item: {"id": item}
    report = Pipeline(make_source(tmp_path), step, sink, workers=4).sync.run()
    assert sorted(sink.ids) == list(range(500))
    assert (report.done, report.written, report.dead, report.ended) == (500, 500, 0, "complete")
    assert sink.closed
    assert latest_events(1)[0].kind == "pipeline_ended"


def test_run__no_row_or_no_sink__items_are_done_with_the_step() -> None:
    async def odd(item: int) -> Row | None:
        return {"id": item} if item % 2 else None

    sink, metrics = MemorySink(), InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        report = Pipeline(range(10), odd, sink).sync.run()
        without_sink = Pipeline(range(10), odd).sync.run()
    finally:
        use_metrics(before)
    assert (report.done, report.written, sorted(sink.ids)) == (10, 5, [1, 3, 5, 7, 9])
    assert (without_sink.done, without_sink.written) == (10, 0)
    assert metrics.value("pipeline_items", outcome="nothing") == 15
    assert metrics.value("pipeline_items", outcome="written") == 5


@pytest.mark.parametrize("is_async", [False, True])
def test_step__several_rows_or_none__are_written_together(is_async: bool) -> None:
    sink = AsyncMemorySink() if is_async else MemorySink()

    def to_rows(item: int) -> Sequence[Row]:
        return [{"id": item, "part": part} for part in range(item)]

    report = Pipeline([3, 0, 2], to_rows, sink, workers=1, max_rows=2, number="line").sync.run()
    assert [(row["line"], row["id"], row["part"]) for row in sink.rows] == [
        *((0, 3, part) for part in range(3)),
        *((2, 2, part) for part in range(2)),
    ]
    assert (report.done, report.written) == (3, 2)
    assert sink.batches == 1


@pytest.mark.parametrize("is_async", [False, True])
def test_step__one_of_several_rows_at_fault__the_item_is_a_dead_letter_without_rows(
    is_async: bool, tmp_path: Path
) -> None:
    class PickySink(AsyncMemorySink if is_async else MemorySink):  # type: ignore[misc]
        def check(self, rows: Sequence[Row]) -> None:
            for index, row in enumerate(rows):
                if row["id"] == 4:
                    raise SinkRowError("four", index)

    sink, path = PickySink(), tmp_path / "dead.jsonl"
    pipeline = Pipeline(
        range(4), lambda item: [{"id": 2 * item}, {"id": 2 * item + 1}], sink, workers=1, dead_letters=path
    )
    report = pipeline.sync.run()
    assert (report.written, report.dead) == (3, 1)
    assert sink.ids == [0, 1, 2, 3, 6, 7]
    assert [letter["item"] for letter in dead_letters_in(path)] == [2]


def test_sink__index_of_no_row__all_items_of_the_batch_are_dead_letters(tmp_path: Path) -> None:
    sink, path = MemorySink(), tmp_path / "dead.jsonl"
    sink.error = SinkRowError("wrong index", 99)
    assert Pipeline(range(3), to_row, sink, dead_letters=path).sync.run().dead == 3


def test_step__too_many_rows__is_a_value_error() -> None:
    pipeline = Pipeline([1], lambda item: [{"id": 1}] * 10_001, MemorySink())
    with pytest.raises(ValueError, match="step must return at most 10000 rows for an item, got 10001"):
        pipeline.sync.run()


def test_step__fast_and_blocking__calls_share_threads_and_nothing_is_lost(tmp_path: Path) -> None:
    sink, path = MemorySink(), tmp_path / "dead.jsonl"
    threads = set()

    def step(item: int) -> Row | None:
        threads.add(threading.get_ident())
        if item % 100 == 7:
            raise ValueError("seven")
        return None if item % 2 else {"id": item}

    report = Pipeline(range(5000), step, sink, workers=50, dead_letters=path).sync.run()
    assert sorted(sink.ids) == list(range(0, 5000, 2))
    assert (report.done, report.written, report.dead) == (5000, 2500, 50)
    assert sorted(letter["item"] for letter in dead_letters_in(path)) == list(range(7, 5000, 100))
    assert len(threads) < 50


def test_step__blocking_and_the_sink_is_behind__waits_and_loses_no_row() -> None:
    sink = MemorySink()
    sink.gate.clear()
    executed: list[int] = []

    def step(item: int) -> Row:
        executed.append(item)
        if len(executed) == 2500:
            sink.gate.set()  # more items than may wait: the rest needs the sink
        return {"id": item}

    assert Pipeline(range(4000), step, sink, workers=600).sync.run().written == 4000
    assert sorted(sink.ids) == list(range(4000))


def test_step__blocking_and_the_run_drains__the_thread_takes_no_more_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(executor, "BURST_SECONDS", PATIENCE_SECONDS)
    sink = MemorySink()

    async def main() -> Report:
        loop = asyncio.get_running_loop()

        def step(item: int) -> Row:
            if item == 5:
                loop.call_soon_threadsafe(pipeline.drain)
                until(lambda: pipeline._run is not None and pipeline._run._skips_unstarted)
            return MappingProxyType({"id": item}) if item == 0 else {"id": item}

        pipeline = Pipeline(range(100), step, sink, workers=1)
        return await pipeline.run()

    report = asyncio.run(main())
    assert (report.ended, sink.ids) == ("drained", [0, 1, 2, 3, 4, 5])


def test_step__blocking_and_a_line_is_invalid__the_rest_is_done(tmp_path: Path) -> None:
    source, path, sink = tmp_path / "in.jsonl", tmp_path / "dead.jsonl", MemorySink()
    source.write_text("1\nwrong\n3\n")
    report = Pipeline(source, lambda item: {"id": item}, sink, dead_letters=path).sync.run()
    assert (sorted(sink.ids), report.dead) == ([1, 3], 1)


def test_step__slow_and_blocking__as_many_run_at_once_as_there_are_workers() -> None:
    together = threading.Barrier(10, timeout=PATIENCE_SECONDS)

    def step(item: int) -> Any:
        return together.wait()  # not a row, but without a sink nothing is written

    assert Pipeline(range(20), step, workers=10).sync.run().done == 20


def test_sync_run__inside_an_event_loop__is_refused_without_a_warning() -> None:
    pipeline = Pipeline(range(3), to_row)

    async def main() -> None:
        pipeline.sync.run()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError, match=r"use `await pipeline\.run\(\)`"):
            asyncio.run(main())
        gc.collect()
    assert caught == []


def test_run__empty_source__is_complete() -> None:
    assert Pipeline([], to_row, MemorySink()).sync.run().done == 0


def test_run__number_option__adds_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\n\nb\n")
    sink = MemorySink()
    Pipeline(path, to_row, sink, number="line").sync.run()
    assert sink.rows == [{"line": 1, "id": "a"}, {"line": 3, "id": "b"}]


def test_key__items_of_one_key__run_one_at_a_time_in_order() -> None:
    running: set[int] = set()
    concurrent_max = 0

    async def step(item: tuple[int, int]) -> Row:
        nonlocal concurrent_max
        assert item[0] not in running
        running.add(item[0])
        concurrent_max = max(concurrent_max, len(running))
        for _ in range(item[1] % 3):
            await asyncio.sleep(0)
        running.remove(item[0])
        return {"id": item}

    sink = MemorySink()
    items = [(number % 7, number) for number in range(700)]
    Pipeline(items, step, sink, workers=20, key=lambda item: item[0], capacity=10).sync.run()
    assert len(sink.ids) == 700
    for key in range(7):
        of_key = [item for item in sink.ids if item[0] == key]
        assert of_key == sorted(of_key)
    assert concurrent_max > 1


def test_key__function_fails__item_is_a_dead_letter(tmp_path: Path) -> None:
    sink, path = MemorySink(), tmp_path / "dead.jsonl"
    items = [{"k": 1}, {}, {"k": []}, {"k": 2}]
    report = Pipeline(items, to_row, sink, key=lambda item: item["k"], dead_letters=path).sync.run()
    assert (report.written, report.dead) == (2, 2)
    assert [each["position"] for each in dead_letters_in(path)] == [1, 2]
    assert "item 1 has no key: KeyError: 'k'" in dead_letters_in(path)[0]["reason"]


def test_retry__step_fails_at_first__is_retried_and_counted() -> None:
    attempts: dict[int, int] = {}

    async def step(item: int) -> Row:
        attempts[item] = attempts.get(item, 0) + 1
        if item % 2 and attempts[item] < 3:
            raise OSError("not yet")
        return {"id": item}

    sink = MemorySink()
    retry = Retry(3, 0.0, jitter=(0.0, 0.0), budget=None)
    report = Pipeline(range(10), step, sink, retry=retry).sync.run()
    assert (sorted(sink.ids), report.retries) == (list(range(10)), 10)


@pytest.mark.parametrize("retry", [None, Retry(2, 0.0, jitter=(0.0, 0.0), budget=None)])
def test_dead_letters__step_fails_for_good__records_the_reason(tmp_path: Path, retry: Retry | None) -> None:
    def step(item: int) -> Row:
        if item == 3:
            raise StopIteration("three")
        return {"id": item}

    sink, path = MemorySink(), tmp_path / "dead.jsonl"
    report = Pipeline(range(5), step, sink, retry=retry, dead_letters=path).sync.run()
    [dead] = dead_letters_in(path)
    assert (dead["item"], dead["position"], dead["attempts"]) == (3, 3, 1 if retry is None else 3)
    assert "StopIteration" in dead["reason"]
    assert (sorted(sink.ids), report.dead, report.retries) == ([0, 1, 2, 4], 1, 0 if retry is None else 2)
    assert [event.kind for event in latest_events() if event.kind == "pipeline_dead_letter"]


def test_dead_letters__used_as_a_source__are_processed_again(tmp_path: Path) -> None:
    path = tmp_path / "first.dead.jsonl"
    healthy = False

    async def step(item: dict[str, int]) -> Row:
        if not healthy and item["n"] % 2:
            raise OSError("down")
        return {"id": item["n"]}

    sink = MemorySink()
    Pipeline([{"n": n} for n in range(6)], step, sink, dead_letters=DeadLetters(path)).sync.run()
    healthy = True
    report = Pipeline(path, step, sink).sync.run()
    assert (report.written, sorted(sink.ids)) == (3, [0, 1, 2, 3, 4, 5])


def test_dead_letters__none_and_a_step_fails__the_run_raises_its_error() -> None:
    async def step(item: int) -> Row:
        if item == 7:
            raise ZeroDivisionError("seven")
        return {"id": item}

    sink = MemorySink()
    with pytest.raises(ZeroDivisionError) as raised:
        Pipeline(range(100), step, sink, workers=1).sync.run()
    assert raised.value.__notes__ == ["Raised for item 7; set dead_letters to continue without such items."]
    assert sink.ids == list(range(7))
    assert sink.closed


def test_dead_letters__none_and_a_line_is_invalid__the_run_raises_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("1\nnonsense\n")
    with pytest.raises(SourceError, match="line 2 is not JSON"):
        Pipeline(path, to_row, MemorySink()).sync.run()


def test_dead_letters__invalid_lines__are_recorded_and_the_rest_is_done(tmp_path: Path) -> None:
    path, dead = tmp_path / "x.jsonl", tmp_path / "dead.jsonl"
    path.write_bytes(b"1\nnonsense\n\xff\n2\n")
    sink = MemorySink()
    report = Pipeline(path, to_row, sink, dead_letters=dead).sync.run()
    assert (sorted(sink.ids), report.dead) == ([1, 2], 2)
    assert sorted((each["position"], each["item"]) for each in dead_letters_in(dead)) == [
        (2, "nonsense"),
        (3, r"\xff"),
    ]
    assert {each["reason"].partition(" is")[0] for each in dead_letters_in(dead)} == {"line 2", "line 3"}


def test_dead_letters__full__ends_the_run(tmp_path: Path) -> None:
    async def step(item: int) -> Row:
        raise OSError("down")

    dead_letters = DeadLetters(tmp_path / "dead.jsonl", max_bytes=1000)
    with pytest.raises(DeadLettersFullError, match="would exceed max_bytes=1000"):
        Pipeline(range(100), step, MemorySink(), dead_letters=dead_letters, workers=1).sync.run()
    assert 0 < len(dead_letters_in(dead_letters.path)) < 20


def test_sink__fails_for_good__items_become_dead_letters(tmp_path: Path) -> None:
    sink, path = MemorySink(), tmp_path / "dead.jsonl"
    sink.error = OSError("no disk")
    items = [{"n": n} for n in range(3)]
    report = Pipeline(
        items, lambda item: {"id": item["n"]}, sink, dead_letters=path, sink_retry=False
    ).sync.run()
    assert (report.dead, report.written, report.done) == (3, 0, 3)
    assert sorted(each["item"]["n"] for each in dead_letters_in(path)) == [0, 1, 2]
    assert sorted(each["position"] for each in dead_letters_in(path)) == [0, 1, 2]


def test_sink__fails_at_first__is_retried_by_sink_retry() -> None:
    class AlternatingSink(MemorySink):
        def write(self, rows: Sequence[Row]) -> None:
            self.error = None if self.error else OSError("not yet")
            super().write(rows)

    sink = AlternatingSink()
    retry = Retry(3, 0.0, jitter=(0.0, 0.0), budget=None)
    report = Pipeline(range(5), to_row, sink, sink_retry=retry).sync.run()
    assert (sorted(sink.ids), report.written) == ([0, 1, 2, 3, 4], 5)


def test_sink__fails_without_dead_letters__ends_the_run(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.error = OSError("no disk")
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(OSError, match="no disk"):
        Pipeline(range(500), to_row, sink, sink_retry=False, checkpoint=checkpoint).sync.run()
    sink.error = None
    Pipeline(range(500), to_row, sink, checkpoint=checkpoint).sync.run()
    assert sorted(sink.ids) == list(range(500))


def test_sink__open_fails__the_run_raises_its_error() -> None:
    class ClosedSink(MemorySink):
        def open(self) -> None:
            raise SinkError("refused")

    with pytest.raises(SinkError, match="refused"):
        Pipeline(range(5), to_row, ClosedSink()).sync.run()


def test_step__returns_no_mapping__is_a_type_error() -> None:
    async def step(item: int) -> Any:
        return item

    with pytest.raises(
        TypeError, match=r"step must return a mapping \(a row\), a list of them or None, got 0"
    ):
        Pipeline(range(5), step, MemorySink(), workers=1).sync.run()


def test_step__cancelled_from_outside__ends_the_run() -> None:
    async def step(item: int) -> Row:
        raise asyncio.CancelledError

    with pytest.raises(PipelineError, match="a step was cancelled from outside"):
        Pipeline(range(5), step, MemorySink()).sync.run()


@pytest.mark.parametrize("kind", ["generator", "async"])
def test_source__fails__items_read_before_are_done(kind: str, tmp_path: Path) -> None:
    def numbers() -> Iterator[int]:
        yield from range(20)
        raise KeyError("source")

    async def numbers_async() -> AsyncIterator[int]:
        for number in range(20):
            yield number
        raise KeyError("source")

    sink = MemorySink()
    with pytest.raises(KeyError, match="source"):
        Pipeline(numbers() if kind == "generator" else numbers_async(), to_row, sink).sync.run()
    assert set(sink.ids) <= set(range(20))


# -- checkpoints


def test_checkpoint__stopped_run__resumes_without_repeating_confirmed_items(
    tmp_path: Path,
) -> None:
    sink, checkpoint = MemorySink(), tmp_path / "checkpoint"
    done = 0

    async def some(item: int) -> Row:
        nonlocal done
        done += 1
        if done == 300:
            pipeline.stop()
        return {"id": item}

    pipeline = Pipeline(range(1000), some, sink, checkpoint=checkpoint, workers=5)
    first = pipeline.sync.run()
    assert first.ended == "stopped"
    assert 0 < first.written < 1000
    assert len(sink.ids) == first.written
    second = Pipeline(range(1000), to_row, sink, checkpoint=checkpoint).sync.run()
    assert (second.skipped, second.written) == (first.written, 1000 - first.written)
    assert sorted(sink.ids) == list(range(1000))
    third = Pipeline(range(1000), to_row, sink, checkpoint=checkpoint).sync.run()
    assert (third.skipped, third.done, third.ended) == (1000, 0, "complete")


def test_checkpoint__another_source__is_refused(tmp_path: Path) -> None:
    Pipeline(range(5), to_row, checkpoint=tmp_path / "c").sync.run()
    with pytest.raises(CheckpointError, match="total was 5, is 6"):
        Pipeline(range(6), to_row, checkpoint=tmp_path / "c").sync.run()


def test_checkpoint__in_use__is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def step(item: int) -> None:
            await gate.wait()

        first = asyncio.create_task(Pipeline(range(5), step, checkpoint=tmp_path / "c").run())
        await until_async((tmp_path / "c").exists)
        with pytest.raises(CheckpointError, match="in use by another run"):
            await Pipeline(range(5), step, checkpoint=tmp_path / "c").run()
        gate.set()
        assert (await first).done == 5

    asyncio.run(main())


def test_checkpoint__async_source__skips_done_items(tmp_path: Path) -> None:
    for expected in (500, 0):
        assert Pipeline(_numbers(), to_row, checkpoint=tmp_path / "c").sync.run().done == expected


@pytest.mark.parametrize("source", [Channel(), FileSource("-")])
def test_checkpoint__source_that_cannot_be_read_again__is_refused(source: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint must be None for a source that cannot be read again"):
        Pipeline(source, to_row, checkpoint=tmp_path / "c").sync.run()


def test_checkpoint__cannot_be_written__ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    async def step(item: int) -> None:
        if item == 50:
            while not (folder / "c.new").is_dir():  # the run may be writing it right now
                with suppress(FileExistsError):
                    (folder / "c.new").mkdir()
        await asyncio.sleep(0)

    with pytest.raises(CheckpointError, match="cannot write the checkpoint"):
        Pipeline(range(100_000), step, checkpoint=folder / "c", workers=1).sync.run()


def test_window__one_item_hangs__others_continue_only_within_it() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def step(item: int) -> None:
            if item == 0:
                await gate.wait()

        pipeline = Pipeline(range(5000), step, window=1000, capacity=10)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and pipeline._run.report.done > 900)
        for _ in range(1000):  # more than it takes to do the rest, if nothing stopped it
            await asyncio.sleep(0)
        assert pipeline._run is not None
        assert pipeline._run.report.done < 1000
        gate.set()
        assert (await running).done == 5000

    asyncio.run(main())


# -- draining, stopping, cancelling


@pytest.mark.parametrize(
    "make_source", [list_source, file_source, generator_source, async_source, channel_source]
)
@pytest.mark.parametrize("keyed", [False, True])
def test_drain__in_the_middle__finishes_only_items_under_way(
    make_source: Callable[[Path], Any], keyed: bool, tmp_path: Path
) -> None:
    sink, started = MemorySink(), []

    async def step(item: int) -> Row:
        started.append(item)
        if len(started) == 40:
            pipeline.drain()
            pipeline.drain()
        await asyncio.sleep(0)
        return {"id": item}

    key: Any = (lambda item: item % 3) if keyed else None
    pipeline = Pipeline(make_source(tmp_path), step, sink, workers=4, capacity=10, key=key)
    report = pipeline.sync.run()
    assert report.ended == "drained"
    assert sorted(sink.ids) == sorted(started)
    assert 40 <= report.written < 500 or make_source is channel_source
    assert latest_events()[-2].kind == "pipeline_draining"


def test_drain__source_waits__the_run_does_not() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        never = asyncio.Event()

        async def silent() -> AsyncIterator[int]:
            yield 1
            await never.wait()

        def blocked() -> Iterator[int]:
            yield 1
            threading.Event().wait()

        await channel.send(1)
        for source in (channel, silent(), blocked()):
            sink = MemorySink()
            pipeline = Pipeline(source, to_row, sink, max_delay=0.001)
            running = asyncio.create_task(pipeline.run())
            await until_async(lambda sink=sink: sink.ids == [1])  # type: ignore[misc]
            pipeline.drain()
            assert (await running).ended == "drained"

    asyncio.run(main())


def test_drain__before_or_after_a_run__does_nothing() -> None:
    pipeline = Pipeline(range(5), to_row)
    pipeline.drain()
    pipeline.stop()
    assert pipeline.sync.run().done == 5


def test_drain__while_the_window_is_full__ends(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def step(item: int) -> None:
            if item == 0:
                await gate.wait()

        pipeline = Pipeline(range(5000), step, window=1000)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and pipeline._run.report.done > 900)
        pipeline.drain()
        gate.set()
        assert (await running).ended == "drained"

    asyncio.run(main())


def test_stop__sink_hangs__gives_up_after_some_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.pipeline.run.runner.STOP_SECONDS", 0.05)
    sink, checkpoint = MemorySink(), tmp_path / "c"
    sink.gate.clear()

    async def main() -> None:
        pipeline = Pipeline(range(100), to_row, sink, checkpoint=checkpoint, max_rows=10)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and pipeline._run._output is not None)
        assert pipeline._run is not None
        output = pipeline._run._output
        assert output is not None
        await until_async(lambda: output._core.statistics().rows_in_flight > 0)
        pipeline.stop()
        with pytest.raises(TimeoutError, match="not closed within"):
            await running

    asyncio.run(main())
    sink.gate.set()
    until(lambda: sink.closed)
    again = MemorySink()
    report = Pipeline(range(100), to_row, again, checkpoint=checkpoint).sync.run()
    assert set(sink.ids) | set(again.ids) == set(range(100))
    assert report.ended == "complete"


def test_cancel__in_the_middle__writes_done_items_and_is_cancelled() -> None:
    sink = MemorySink()

    async def main() -> None:
        hang = asyncio.Event()

        async def step(item: int) -> Row:
            if item >= 100:
                await hang.wait()
            return {"id": item}

        running = asyncio.create_task(Pipeline(range(200), step, sink).run())
        await until_async(lambda: len(sink.ids) >= 50)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert sorted(sink.ids) == list(range(100))
    assert sink.closed


def test_cancel__while_a_slow_sink_closes__still_writes_done_items(tmp_path: Path) -> None:
    sink = MemorySink()
    sink.gate.clear()

    async def main() -> None:
        pipeline = Pipeline(range(10), to_row, sink)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and len(pipeline._run._main_tasks) > 1)
        run = pipeline._run
        assert run is not None
        await until_async(lambda: all(task.done() for task in run._main_tasks))
        output = run._output
        assert output is not None
        await until_async(lambda: output._core.statistics().state == "closing")
        running.cancel()
        await until_async(run._stop_requested.is_set)
        sink.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert sorted(sink.ids) == list(range(10))
    assert sink.closed


def test_cancel__while_it_waits_for_an_item__is_cancelled() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel()
        is_waiting = asyncio.Event()

        async def silent() -> AsyncIterator[int]:
            is_waiting.set()
            await asyncio.Event().wait()
            yield 1

        waits: list[tuple[Any, Callable[[], bool]]] = [
            (silent(), is_waiting.is_set),
            (channel, lambda: channel.statistics().waiting_receivers > 0),
        ]
        for source, condition in waits:
            running = asyncio.create_task(Pipeline(source, to_row).run())
            await until_async(condition)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())


def test_run__twice_at_once__is_refused_but_not_one_after_another() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def step(item: int) -> None:
            await gate.wait()

        pipeline = Pipeline([1], step)
        first = asyncio.create_task(pipeline.run())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="pipeline is running already"):
            await pipeline.run()
        gate.set()
        assert (await first).done == 1
        assert (await pipeline.run()).done == 1

    asyncio.run(main())


def test_progress__function__receives_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.run.runner.SHOW_SECONDS", 0.001)
    monkeypatch.setattr("comporta.pipeline.run.runner.EVENT_SECONDS", 0.0)
    shown: list[tuple[int, int | None]] = []

    async def step(item: int) -> None:
        while item == 50 and len(shown) < 2:  # noqa: ASYNC110 - the pipeline has no event for it
            await asyncio.sleep(0)

    def show(report: Report) -> None:
        shown.append((report.done, report.left))

    Pipeline(range(100), step, progress=show).sync.run()
    assert len(shown) > 1
    assert all(left == 100 - done for done, left in shown)
    assert "pipeline_progress" in {event.kind for event in latest_events()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be 1 to 10000, got 0"),
        ({"workers": True}, "workers must be an int, got True"),
        ({"capacity": 0}, "capacity must be 1 to 1000000, got 0"),
        ({"window": 10}, "window must be 1000 to 1000000, got 10"),
        ({"key": 5}, "key must be a function of an item or None, got 5"),
        ({"step": None}, "step must be a function of an item, got None"),
        ({"checkpoint": 5}, "checkpoint must be a path or None, got 5"),
        ({"retry": 3}, "retry must be a Retry or None, got 3"),
        ({"sink_retry": 3}, "sink_retry must be a Retry or a bool, got 3"),
        ({"name": "a b"}, "name must be"),
        ({"max_rows": 0}, "max_rows must be 1 to"),
        ({"max_delay": 0}, "max_delay must be"),
        ({"source": "file.txt"}, "source must be a Path for a file, not a string, got 'file.txt'"),
        (
            {"sink": "rows.csv"},
            r"sink must be a sink for a file, such as CsvSink\(path\), not a str, got 'rows.csv'",
        ),
        ({"sink": 5}, "sink must have the methods open, write and close, got 5"),
    ],
)
def test_pipeline__invalid_option__names_the_field_the_range_and_the_value(
    options: dict[str, Any], message: str
) -> None:
    given: dict[str, Any] = {"source": range(5), "step": to_row, "sink": MemorySink()} | options
    with pytest.raises((ValueError, TypeError), match=message):
        Pipeline(given.pop("source"), given.pop("step"), given.pop("sink"), **given).sync.run()


def test_repr__pipeline__contains_its_name() -> None:
    assert repr(Pipeline([], to_row, name="rows")) == "<Pipeline 'rows', 10 workers>"


def test_drain__channel_that_others_still_fill__ends() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(10)
        done: list[int] = []

        async def fill() -> None:
            for number in range(1_000_000):
                await channel.send(number)
                await asyncio.sleep(0)

        async def step(item: int) -> None:
            done.append(item)

        filling = asyncio.create_task(fill())
        pipeline = Pipeline(channel, step, workers=2)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: len(done) > 20)
        pipeline.drain()
        report = await asyncio.wait_for(running, 30)
        filling.cancel()
        assert (report.ended, report.done) == ("drained", len(done))

    asyncio.run(main())


def test_drain__long_file__leaves_no_thread_behind(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "in.txt"
        path.write_text("x\n" * 20_000)
        started = asyncio.Event()

        async def step(_: str) -> None:
            started.set()
            await asyncio.sleep(0)

        pipeline = Pipeline(path, step, workers=2)
        running = asyncio.create_task(pipeline.run())
        await started.wait()
        pipeline.drain()
        await running

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), thread.name


def test_run__program_has_signal_handlers__restores_them() -> None:
    def handle(*_: object) -> None:
        """Do nothing."""

    before = signal.signal(signal.SIGTERM, handle)
    try:
        Pipeline([1], lambda _: None).sync.run()
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_progress__function_fails__does_not_end_the_run() -> None:
    def show(_: Report) -> None:
        raise OSError("the terminal is gone")

    assert Pipeline(range(3), lambda _: None, progress=show).sync.run().done == 3


def test_window__smaller_than_a_batch__batches_still_fill() -> None:
    class Sink:
        def open(self) -> None: ...

        def write(self, rows: Sequence[Row]) -> None: ...

        def close(self) -> None: ...

    async def step(item: int) -> Row:
        return {"id": item}

    pipeline = Pipeline(range(3000), step, Sink(), max_rows=2000, max_delay=60.0, window=1000)
    assert asyncio.run(asyncio.wait_for(pipeline.run(), 30)).written == 3000
