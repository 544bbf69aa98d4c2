"""A source, a step, a sink: what is done is confirmed, and nothing is lost on the way."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from comporta import Channel, Pipeline, Retry
from comporta.errors import CheckpointError, DeadLettersFullError, PipelineError, SinkError, SourceError
from comporta.events import latest_events
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.letters import DeadLetters
from comporta.pipeline.runs.report import Report
from comporta.pipeline.runs.sources import FileSource
from comporta.pipeline.sinks import Row

PATIENCE_SECONDS = 120.0


class Kept:
    """A sink in memory. ``gate`` holds it up, ``error`` fails it."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.batches = 0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def open(self) -> None:
        """Nothing to do."""

    def write(self, rows: Sequence[Row]) -> None:
        self.gate.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        self.rows += [dict(row) for row in rows]
        self.batches += 1

    def close(self) -> None:
        self.closed = True

    @property
    def ids(self) -> list[Any]:
        return [row["id"] for row in self.rows]


async def named(item: Any) -> Row:
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


def letters_in(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def plain_source(tmp_path: Path) -> Any:
    return list(range(500))


def ranged_source(tmp_path: Path) -> Any:
    return range(500)


def generated_source(tmp_path: Path) -> Any:
    return (number for number in range(500))


async def _awaited() -> AsyncIterator[int]:
    for number in range(500):
        yield number
        await asyncio.sleep(0)


def awaited_source(tmp_path: Path) -> Any:
    return _awaited()


def file_source(tmp_path: Path) -> Any:
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f"{number}\n" for number in range(500)))
    return path


def threaded_source(tmp_path: Path) -> Any:
    channel: Channel[int] = Channel(capacity=50)

    def fill() -> None:
        channel.sync.send_many(range(500))
        channel.close()

    threading.Thread(target=fill, daemon=True).start()
    return channel


SOURCES = [plain_source, ranged_source, generated_source, awaited_source, file_source, threaded_source]


@pytest.mark.parametrize("made", SOURCES)
@pytest.mark.parametrize("kind", ["awaited", "plain"])
def test_run__any_source_any_step__writes_every_item_once(
    made: Callable[[Path], Any], kind: str, tmp_path: Path
) -> None:
    sink = Kept()
    step: Any = named if kind == "awaited" else lambda item: {"id": item}
    report = Pipeline(made(tmp_path), step, sink, workers=4).sync.run()
    assert sorted(sink.ids) == list(range(500))
    assert (report.done, report.written, report.dead, report.ended) == (500, 500, 0, "complete")
    assert sink.closed
    assert latest_events(1)[0].kind == "pipeline_ended"


def test_run__nothing_to_write_or_no_sink__is_done_with_the_step() -> None:
    async def odd(item: int) -> Row | None:
        return {"id": item} if item % 2 else None

    sink, metrics = Kept(), InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        report = Pipeline(range(10), odd, sink).sync.run()
        alone = Pipeline(range(10), odd).sync.run()
    finally:
        use_metrics(before)
    assert (report.done, report.written, sorted(sink.ids)) == (10, 5, [1, 3, 5, 7, 9])
    assert (alone.done, alone.written) == (10, 0)
    assert metrics.value("pipeline_items", outcome="nothing") == 15
    assert metrics.value("pipeline_items", outcome="written") == 5


def test_run__no_items__is_complete() -> None:
    assert Pipeline([], named, Kept()).sync.run().done == 0


def test_run__number_asked_for__is_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a\n\nb\n")
    sink = Kept()
    Pipeline(path, named, sink, number="line").sync.run()
    assert sink.rows == [{"line": 1, "id": "a"}, {"line": 3, "id": "b"}]


def test_key__items_of_one__are_done_in_order_one_at_a_time_and_others_meanwhile() -> None:
    under_way: set[int] = set()
    at_once = 0

    async def step(item: tuple[int, int]) -> Row:
        nonlocal at_once
        assert item[0] not in under_way
        under_way.add(item[0])
        at_once = max(at_once, len(under_way))
        await asyncio.sleep(0.0001 * (item[1] % 3))
        under_way.remove(item[0])
        return {"id": item}

    sink = Kept()
    items = [(number % 7, number) for number in range(700)]
    Pipeline(items, step, sink, workers=20, key=lambda item: item[0], capacity=10).sync.run()
    assert len(sink.ids) == 700
    for key in range(7):
        of_key = [item for item in sink.ids if item[0] == key]
        assert of_key == sorted(of_key)
    assert at_once > 1


def test_key__that_cannot_be_told__is_a_dead_letter(tmp_path: Path) -> None:
    sink, path = Kept(), tmp_path / "dead.jsonl"
    items = [{"k": 1}, {}, {"k": []}, {"k": 2}]
    report = Pipeline(items, named, sink, key=lambda item: item["k"], dead_letters=path).sync.run()
    assert (report.written, report.dead) == (2, 2)
    assert [letter["position"] for letter in letters_in(path)] == [1, 2]
    assert "item 1 has no key: KeyError: 'k'" in letters_in(path)[0]["reason"]


def test_retry__steps_that_fail_at_first__are_tried_again_and_counted() -> None:
    tries: dict[int, int] = {}

    async def step(item: int) -> Row:
        tries[item] = tries.get(item, 0) + 1
        if item % 2 and tries[item] < 3:
            raise OSError("not yet")
        return {"id": item}

    sink = Kept()
    retry = Retry(3, 0.0, jitter=(0.0, 0.0), budget=None)
    report = Pipeline(range(10), step, sink, retry=retry).sync.run()
    assert (sorted(sink.ids), report.retries) == (list(range(10)), 10)


@pytest.mark.parametrize("retry", [None, Retry(2, 0.0, jitter=(0.0, 0.0), budget=None)])
def test_dead_letters__steps_that_fail_for_good__are_there_with_the_reason(
    tmp_path: Path, retry: Retry | None
) -> None:
    def step(item: int) -> Row:
        if item == 3:
            raise StopIteration("three")
        return {"id": item}

    sink, path = Kept(), tmp_path / "dead.jsonl"
    report = Pipeline(range(5), step, sink, retry=retry, dead_letters=path).sync.run()
    [letter] = letters_in(path)
    assert (letter["item"], letter["position"], letter["attempts"]) == (3, 3, 1 if retry is None else 3)
    assert "StopIteration" in letter["reason"]
    assert (sorted(sink.ids), report.dead, report.retries) == ([0, 1, 2, 4], 1, 0 if retry is None else 2)
    assert [event.kind for event in latest_events() if event.kind == "pipeline_dead_letter"]


def test_dead_letters__fed_in_again__are_done(tmp_path: Path) -> None:
    path = tmp_path / "first.dead.jsonl"
    healthy = False

    async def step(item: dict[str, int]) -> Row:
        if not healthy and item["n"] % 2:
            raise OSError("down")
        return {"id": item["n"]}

    sink = Kept()
    Pipeline([{"n": n} for n in range(6)], step, sink, dead_letters=DeadLetters(path)).sync.run()
    healthy = True
    report = Pipeline(path, step, sink).sync.run()
    assert (report.written, sorted(sink.ids)) == (3, [0, 1, 2, 3, 4, 5])


def test_dead_letters__none_and_a_step_fails__ends_the_run_with_its_error() -> None:
    async def step(item: int) -> Row:
        if item == 7:
            raise ZeroDivisionError("seven")
        return {"id": item}

    sink = Kept()
    with pytest.raises(ZeroDivisionError) as raised:
        Pipeline(range(100), step, sink, workers=1).sync.run()
    assert raised.value.__notes__ == ["This was item 7; give dead_letters to go on without it."]
    assert sink.ids == list(range(7))
    assert sink.closed


def test_dead_letters__none_and_a_line_is_unreadable__ends_the_run_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("1\nnonsense\n")
    with pytest.raises(SourceError, match="line 2 is not JSON"):
        Pipeline(path, named, Kept()).sync.run()


def test_dead_letters__unreadable_lines__are_there_and_the_rest_is_done(tmp_path: Path) -> None:
    path, dead = tmp_path / "x.jsonl", tmp_path / "dead.jsonl"
    path.write_bytes(b"1\nnonsense\n\xff\n2\n")
    sink = Kept()
    report = Pipeline(path, named, sink, dead_letters=dead).sync.run()
    assert (sorted(sink.ids), report.dead) == ([1, 2], 2)
    assert sorted((letter["position"], letter["item"]) for letter in letters_in(dead)) == [
        (2, "nonsense"),
        (3, r"\xff"),
    ]
    assert {letter["reason"].partition(" is")[0] for letter in letters_in(dead)} == {"line 2", "line 3"}


def test_dead_letters__full__ends_the_run(tmp_path: Path) -> None:
    async def step(item: int) -> Row:
        raise OSError("down")

    letters = DeadLetters(tmp_path / "dead.jsonl", max_bytes=1000)
    with pytest.raises(DeadLettersFullError, match="over the bound of 1000"):
        Pipeline(range(100), step, Kept(), dead_letters=letters, workers=1).sync.run()
    assert 0 < len(letters_in(letters.path)) < 20


def test_sink__fails_for_good__its_items_are_dead_letters(tmp_path: Path) -> None:
    sink, path = Kept(), tmp_path / "dead.jsonl"
    sink.error = OSError("no disk")
    items = [{"n": n} for n in range(3)]
    report = Pipeline(
        items, lambda item: {"id": item["n"]}, sink, dead_letters=path, sink_retry=False
    ).sync.run()
    assert (report.dead, report.written, report.done) == (3, 0, 3)
    assert sorted(letter["item"]["n"] for letter in letters_in(path)) == [0, 1, 2]
    assert sorted(letter["position"] for letter in letters_in(path)) == [0, 1, 2]


def test_sink__fails_at_first__is_tried_again_as_asked() -> None:
    class Shaky(Kept):
        def write(self, rows: Sequence[Row]) -> None:
            self.error = None if self.error else OSError("not yet")
            super().write(rows)

    sink = Shaky()
    retry = Retry(3, 0.0, jitter=(0.0, 0.0), budget=None)
    report = Pipeline(range(5), named, sink, sink_retry=retry).sync.run()
    assert (sorted(sink.ids), report.written) == ([0, 1, 2, 3, 4], 5)


def test_sink__fails_and_there_are_no_letters__ends_the_run(tmp_path: Path) -> None:
    sink = Kept()
    sink.error = OSError("no disk")
    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(OSError, match="no disk"):
        Pipeline(range(500), named, sink, sink_retry=False, checkpoint=checkpoint).sync.run()
    sink.error = None
    Pipeline(range(500), named, sink, checkpoint=checkpoint).sync.run()
    assert sorted(sink.ids) == list(range(500))


def test_sink__cannot_be_opened__is_its_error() -> None:
    class Shut(Kept):
        def open(self) -> None:
            raise SinkError("shut")

    with pytest.raises(SinkError, match="shut"):
        Pipeline(range(5), named, Shut()).sync.run()


def test_step__returns_no_row__is_a_type_error_that_says_so() -> None:
    async def step(item: int) -> Any:
        return item

    with pytest.raises(TypeError, match="step must return a row, which is a mapping, or None, got 0"):
        Pipeline(range(5), step, Kept(), workers=1).sync.run()


def test_step__cancelled_from_elsewhere__ends_the_run() -> None:
    async def step(item: int) -> Row:
        raise asyncio.CancelledError

    with pytest.raises(PipelineError, match="a step was cancelled from elsewhere"):
        Pipeline(range(5), step, Kept()).sync.run()


@pytest.mark.parametrize("made", ["generated", "awaited"])
def test_source__fails__what_was_read_before_is_done(made: str, tmp_path: Path) -> None:
    def generated() -> Iterator[int]:
        yield from range(20)
        raise KeyError("source")

    async def awaited() -> AsyncIterator[int]:
        for number in range(20):
            yield number
        raise KeyError("source")

    sink = Kept()
    with pytest.raises(KeyError, match="source"):
        Pipeline(generated() if made == "generated" else awaited(), named, sink).sync.run()
    assert set(sink.ids) <= set(range(20))


# checkpoints ------------------------------------------------------------------------------------------


def test_checkpoint__run_that_was_stopped__goes_on_without_repeating_what_was_confirmed(
    tmp_path: Path,
) -> None:
    sink, checkpoint = Kept(), tmp_path / "checkpoint"
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
    second = Pipeline(range(1000), named, sink, checkpoint=checkpoint).sync.run()
    assert (second.skipped, second.written) == (first.written, 1000 - first.written)
    assert sorted(sink.ids) == list(range(1000))
    third = Pipeline(range(1000), named, sink, checkpoint=checkpoint).sync.run()
    assert (third.skipped, third.done, third.ended) == (1000, 0, "complete")


def test_checkpoint__another_source__is_refused(tmp_path: Path) -> None:
    Pipeline(range(5), named, checkpoint=tmp_path / "c").sync.run()
    with pytest.raises(CheckpointError, match="total was 5, is 6"):
        Pipeline(range(6), named, checkpoint=tmp_path / "c").sync.run()


def test_checkpoint__in_use__is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def step(item: int) -> None:
            await gate.wait()

        first = asyncio.create_task(Pipeline(range(5), step, checkpoint=tmp_path / "c").run())
        await until_async((tmp_path / "c").exists)
        with pytest.raises(CheckpointError, match="another run uses it"):
            await Pipeline(range(5), step, checkpoint=tmp_path / "c").run()
        gate.set()
        assert (await first).done == 5

    asyncio.run(main())


def test_checkpoint__awaited_source__skips_what_is_done(tmp_path: Path) -> None:
    for expected in (500, 0):
        assert Pipeline(_awaited(), named, checkpoint=tmp_path / "c").sync.run().done == expected


@pytest.mark.parametrize("source", [Channel(), FileSource("-")])
def test_checkpoint__source_that_cannot_be_read_again__is_refused(source: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="checkpoint needs a source that can be read again"):
        Pipeline(source, named, checkpoint=tmp_path / "c").sync.run()


def test_checkpoint__cannot_be_written__ends_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    async def step(item: int) -> None:
        if item == 50:
            while not (folder / "c.new").is_dir():  # it may just be being written
                with suppress(FileExistsError):
                    (folder / "c.new").mkdir()
        await asyncio.sleep(0.001)

    with pytest.raises(CheckpointError, match="cannot be written"):
        Pipeline(range(100_000), step, checkpoint=folder / "c", workers=1).sync.run()


def test_window__one_item_hangs__others_go_on_only_so_far() -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def step(item: int) -> None:
            if item == 0:
                await gate.wait()

        pipeline = Pipeline(range(5000), step, window=1000, capacity=10)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and pipeline._run.report.done > 900)
        await asyncio.sleep(0.05)
        assert pipeline._run is not None
        assert pipeline._run.report.done < 1000
        gate.set()
        assert (await running).done == 5000

    asyncio.run(main())


# ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [plain_source, file_source, generated_source, awaited_source, threaded_source]
)
@pytest.mark.parametrize("keyed", [False, True])
def test_drain__in_the_middle__does_what_is_under_way_and_no_more(
    made: Callable[[Path], Any], keyed: bool, tmp_path: Path
) -> None:
    sink, begun = Kept(), []

    async def step(item: int) -> Row:
        begun.append(item)
        if len(begun) == 40:
            pipeline.drain()
            pipeline.drain()
        await asyncio.sleep(0.001)
        return {"id": item}

    key: Any = (lambda item: item % 3) if keyed else None
    pipeline = Pipeline(made(tmp_path), step, sink, workers=4, capacity=10, key=key)
    report = pipeline.sync.run()
    assert report.ended == "drained"
    assert sorted(sink.ids) == sorted(begun)
    assert 40 <= report.written < 500 or made is threaded_source
    assert latest_events()[-2].kind == "pipeline_draining"


def test_drain__source_that_waits__is_not_waited_for() -> None:
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
            sink = Kept()
            pipeline = Pipeline(source, named, sink, max_delay=0.001)
            running = asyncio.create_task(pipeline.run())
            await until_async(lambda sink=sink: sink.ids == [1])  # type: ignore[misc]
            pipeline.drain()
            assert (await running).ended == "drained"

    asyncio.run(main())


def test_drain__before_it_began_or_after__does_nothing() -> None:
    pipeline = Pipeline(range(5), named)
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


def test_stop__sink_hangs__is_given_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.runs.running.STOP_SECONDS", 0.05)
    sink, checkpoint = Kept(), tmp_path / "c"
    sink.gate.clear()

    async def main() -> None:
        pipeline = Pipeline(range(100), named, sink, checkpoint=checkpoint, max_rows=10)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and pipeline._run._outlet is not None)
        await asyncio.sleep(0.05)
        pipeline.stop()
        with pytest.raises(TimeoutError, match="not closed within"):
            await running

    asyncio.run(main())
    sink.gate.set()
    until(lambda: sink.closed)
    again = Kept()
    report = Pipeline(range(100), named, again, checkpoint=checkpoint).sync.run()
    assert set(sink.ids) | set(again.ids) == set(range(100))
    assert report.ended == "complete"


def test_cancelled__in_the_middle__writes_what_is_done_and_is_cancelled() -> None:
    sink = Kept()

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


def test_cancelled__while_the_sink_is_slow_at_the_end__still_writes_what_is_done(tmp_path: Path) -> None:
    sink = Kept()
    sink.gate.clear()

    async def main() -> None:
        pipeline = Pipeline(range(10), named, sink)
        running = asyncio.create_task(pipeline.run())
        await until_async(lambda: pipeline._run is not None and len(pipeline._run._crew) > 1)
        run = pipeline._run
        assert run is not None
        await until_async(lambda: all(task.done() for task in run._crew))
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.sleep(0.05)
        sink.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert sorted(sink.ids) == list(range(10))
    assert sink.closed


def test_cancelled__while_it_waits_for_an_item__is_cancelled() -> None:
    async def main() -> None:
        async def silent() -> AsyncIterator[int]:
            await asyncio.sleep(PATIENCE_SECONDS)
            yield 1

        for source in (silent(), Channel()):
            pipeline = Pipeline(source, named)
            running = asyncio.create_task(pipeline.run())
            await until_async(
                lambda pipeline=pipeline: bool(pipeline._run and len(pipeline._run._crew) > 1)  # type: ignore[misc]
            )
            await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    asyncio.run(main())


def test_run__twice_at_once__is_refused_and_one_after_another_is_fine() -> None:
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


def test_progress__a_function__is_told_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("comporta.pipeline.runs.running.SHOW_SECONDS", 0.001)
    monkeypatch.setattr("comporta.pipeline.runs.running.SAY_SECONDS", 0.0)
    told: list[tuple[int, int | None]] = []

    async def step(item: int) -> None:
        await asyncio.sleep(0.001)

    def show(report: Report) -> None:
        told.append((report.done, report.left))

    Pipeline(range(100), step, progress=show).sync.run()
    assert len(told) > 1
    assert all(left == 100 - done for done, left in told)
    assert "pipeline_progress" in {event.kind for event in latest_events()}


@pytest.mark.parametrize(
    ("options", "said"),
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
        ({"source": "file.txt"}, "source must be a Path if it is a file"),
    ],
)
def test_pipeline__bad_input__names_the_field_the_range_and_the_value(
    options: dict[str, Any], said: str
) -> None:
    given: dict[str, Any] = {"source": range(5), "step": named, "sink": Kept()} | options
    with pytest.raises((ValueError, TypeError), match=said):
        Pipeline(given.pop("source"), given.pop("step"), given.pop("sink"), **given).sync.run()


def test_pipeline__shown__has_its_name() -> None:
    assert repr(Pipeline([], named, name="rows")) == "<Pipeline 'rows', 10 workers>"


def test_drain__of_a_channel_that_others_go_on_filling__ends() -> None:
    async def main() -> None:
        channel: Channel[int] = Channel(10)
        done: list[int] = []

        async def fill() -> None:
            for number in range(1_000_000):
                await channel.send(number)
                await asyncio.sleep(0.001)

        async def step(item: int) -> None:
            done.append(item)

        filling = asyncio.create_task(fill())
        pipeline = Pipeline(channel, step, workers=2)
        running = asyncio.create_task(pipeline.run())
        for _ in range(20):
            await asyncio.sleep(0.001)
        pipeline.drain()
        report = await asyncio.wait_for(running, 30)
        filling.cancel()
        assert (report.ended, report.done) == ("drained", len(done))

    asyncio.run(main())


def test_drain__of_a_long_file__leaves_no_thread_behind(tmp_path: Path) -> None:
    async def main() -> None:
        given = tmp_path / "in.txt"
        given.write_text("x\n" * 20_000)
        began = asyncio.Event()

        async def step(_: str) -> None:
            began.set()
            await asyncio.sleep(0.001)

        pipeline = Pipeline(given, step, workers=2)
        running = asyncio.create_task(pipeline.run())
        await began.wait()
        pipeline.drain()
        await running

    before = set(threading.enumerate())
    asyncio.run(main())
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
        assert not thread.is_alive(), thread.name


def test_run__in_a_program_that_hears_signals__gives_them_back() -> None:
    def heard(*_: object) -> None:
        """Whatever the program does then."""

    before = signal.signal(signal.SIGTERM, heard)
    try:
        Pipeline([1], lambda _: None).sync.run()
        assert signal.getsignal(signal.SIGTERM) is heard
    finally:
        signal.signal(signal.SIGTERM, before)


def test_progress__that_fails__does_not_end_the_run() -> None:
    def show(_: Report) -> None:
        raise OSError("the terminal is gone")

    assert Pipeline(range(3), lambda _: None, progress=show).sync.run().done == 3


def test_window__smaller_than_a_batch__does_not_keep_the_batch_from_being_full() -> None:
    class Sink:
        def open(self) -> None: ...

        def write(self, rows: Sequence[Row]) -> None: ...

        def close(self) -> None: ...

    async def step(item: int) -> Row:
        return {"id": item}

    pipeline = Pipeline(range(3000), step, Sink(), max_rows=2000, max_delay=60.0, window=1000)
    assert asyncio.run(asyncio.wait_for(pipeline.run(), 30)).written == 3000
