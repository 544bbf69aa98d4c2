"""Batch writers through both faces: batches, failures, opening and closing, cancellation."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.writer_faces import NEVER_SECONDS, AsyncScriptedSink, Face, ScriptedSink, until

from comporta import BatchWriter, Retry, TokenBucketLimiter
from comporta.errors import (
    DeadLettersError,
    DeadLettersFullError,
    LimitReachedError,
    SinkFullError,
    SinkRowError,
    SinkUnavailableError,
    WriterClosedError,
)
from comporta.events import latest_events
from comporta.flow import Flow, run
from comporta.limits.wait_queue import WaitForWake
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.sinks import CsvSink, Row
from comporta.pipeline.writer import at_exit, core
from comporta.pipeline.writer.delivery import call_effect
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

DOWN = SinkUnavailableError("the sink is down")


@pytest.fixture(params=["awaiting", "blocking"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    with asyncio.Runner() as runner:
        yield Face(runner if request.param == "awaiting" else None)


# -- batches


def test_write__max_rows_reached__writes_a_batch_at_once(face: Face) -> None:
    face.open_writer(max_rows=3)
    face.write(1, 2, 3, 4)
    until(lambda: face.sink.ids == [1, 2, 3])
    face.do("close")
    assert face.sink.batches == [[{"id": 1}, {"id": 2}, {"id": 3}], [{"id": 4}]]
    assert (face.sink.opened, face.sink.closed) == (1, 1)


def test_write__fewer_rows__are_written_after_the_delay(face: Face) -> None:
    face.open_writer(max_rows=50, max_delay=0.02)
    face.write(1, 2)
    until(lambda: face.sink.ids == [1, 2])
    face.do("close")


def test_flush__rows_waiting__writes_them_and_waits(face: Face) -> None:
    face.open_writer(max_rows=2)
    face.do("write_many", [{"id": number} for number in range(5)])
    face.do("flush")
    assert face.sink.ids == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in face.sink.batches] == [2, 2, 1]
    face.do("flush")
    face.do("write_many", [])
    face.do("close")
    assert face.sink.tries == 3


def test_close__called_twice__closes_the_sink_once(face: Face) -> None:
    face.open_writer()
    face.do("close")
    face.do("close")
    assert face.sink.closed == 1


def test_write__slow_sink__waits_and_loses_no_row(face: Face) -> None:
    writer = face.open_writer(max_rows=2, capacity=4)
    face.sink.gate.clear()
    face.do("write_many", [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}])
    later = threading.Thread(target=lambda: writer.sync.write_many([{"id": 4}, {"id": 5}]))
    later.start()
    until(lambda: writer.statistics().writers_waiting)
    assert writer.statistics().rows_waiting == 4
    face.sink.gate.set()
    later.join()
    face.do("close")
    assert face.sink.ids == [0, 1, 2, 3, 4, 5]


def test_write__sink_stalls_once__callers_do_not_wait_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = 0
    wait = WaitForWake.wait

    async def count_and_wait(effect: WaitForWake) -> None:
        nonlocal waits
        waits += 1
        await wait(effect)

    monkeypatch.setattr(WaitForWake, "wait", count_and_wait)
    sink = ScriptedSink()
    sink.gate.clear()

    async def main() -> None:
        async with BatchWriter(sink, max_rows=50) as writer:

            async def produce(first: int) -> None:
                for number in range(1000):
                    await writer.write({"id": first + number})
                    await asyncio.sleep(0)

            producers = [asyncio.create_task(produce(1000 * n)) for n in range(8)]
            while writer.statistics().writers_waiting < 8:  # noqa: ASYNC110 - a statistic has no event
                await asyncio.sleep(0)
            sink.gate.set()
            await asyncio.gather(*producers)

    sink.open = lambda: None  # type: ignore[method-assign]  # only the first batch stalls
    asyncio.run(main())
    assert sorted(sink.ids) == list(range(8000))
    assert waits < 800, f"{waits} waits for 8,000 rows"


def test_write__callers_wait__later_rows_overtake_them_at_most_capacity_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "POLL_SECONDS", 60.0)
    sink = ScriptedSink()
    writer = BatchWriter(sink, max_rows=1, capacity=4)
    wake_first = writer._core._wait_queue.wake_first
    with writer.sync:
        sink.gate.clear()
        writer.sync.write_many([{"id": number} for number in range(4)])
        waiting = threading.Thread(target=writer.sync.write, args=({"id": "first waiter"},))
        waiting.start()
        until(lambda: writer.statistics().writers_waiting == 1)
        writer._core._wait_queue.wake_first = lambda key: None  # type: ignore[method-assign]
        sink.gate.set()
        for number in range(4, 8):
            until(lambda: writer.statistics().rows_waiting == 0)
            writer.sync.write({"id": number})
        until(lambda: writer.statistics().rows_waiting == 0)
        later = threading.Thread(target=writer.sync.write, args=({"id": "later"},))
        later.start()
        until(lambda: writer.statistics().writers_waiting == 2)
        writer._core._wait_queue.wake_first = wake_first  # type: ignore[method-assign]
        wake_first("room")
        waiting.join()
        later.join()
    assert sink.ids == [*range(8), "first waiter", "later"]


def test_statistics__during_a_batch__count_rows_and_batches(face: Face) -> None:
    writer = face.make(max_rows=2)
    assert writer.statistics().state == "not open yet"
    face.do("open")
    face.sink.gate.clear()
    face.write(1, 2, 3)
    until(lambda: writer.statistics().rows_in_flight == 2)
    statistics = writer.statistics()
    assert (statistics.state, statistics.rows_waiting, statistics.capacity) == ("open", 3, 20)
    assert statistics.rows_written == 0
    face.sink.gate.set()
    face.do("close")
    statistics = writer.statistics()
    assert (statistics.state, statistics.rows_waiting) == ("closed", 0)
    assert (statistics.rows_written, statistics.batches_written) == (3, 2)


def test_writer__rows_of_one_key__stay_in_order_beside_other_keys(face: Face) -> None:
    both = threading.Barrier(2, timeout=30)
    stored: list[Row] = []
    seen: set[int] = set()

    class ParallelSink(ScriptedSink):
        def write(self, rows: Sequence[Row]) -> None:
            if threading.get_ident() not in seen:
                seen.add(threading.get_ident())
                both.wait()  # passes only when two batches are written at the same time
            stored.extend(rows)

    face.open_writer(sink=ParallelSink(), key=lambda row: row["key"], threads=2, max_rows=1, capacity=1000)
    rows = [{"id": number, "key": number % 2} for number in range(100)]
    face.do("write_many", rows[:50])
    for row in rows[50:]:
        face.do("write", row)
    face.do("close")
    for key in (0, 1):
        assert [row for row in stored if row["key"] == key] == [row for row in rows if row["key"] == key]


def test_writer__no_key__writes_one_batch_at_a_time(face: Face) -> None:
    face.open_writer(max_rows=1, capacity=100)
    face.write(*range(20))
    face.do("close")
    assert face.sink.ids == list(range(20))
    assert face.sink.concurrent_max == 1


def test_writer__threads_and_coroutines_together__writes_each_row_once() -> None:
    sink = ScriptedSink()

    async def main() -> None:
        async with BatchWriter(sink, max_rows=7, capacity=21, max_delay=NEVER_SECONDS) as writer:

            def blocking(first: int) -> None:
                for number in range(first, first + 200):
                    writer.sync.write({"id": number})

            threads = [threading.Thread(target=blocking, args=(first,)) for first in (0, 200)]
            for thread in threads:
                thread.start()

            async def some(first: int) -> None:
                for number in range(first, first + 200):
                    await writer.write({"id": number})

            await asyncio.gather(some(400), some(600))
            for thread in threads:
                await asyncio.to_thread(thread.join)

    asyncio.run(main())
    assert sorted(sink.ids) == list(range(800))


# -- failures


def test_writer__sink_fails_at_first__is_retried(face: Face) -> None:
    face.sink.errors = [DOWN, OSError("gone")]
    writer = face.open_writer(max_rows=2)
    face.write(1, 2)
    face.do("close")
    assert face.sink.ids == [1, 2]
    assert writer.statistics().retries == 2


def test_writer__batch_fails_for_good__becomes_dead_letters(face: Face, tmp_path: Path) -> None:
    dead: list[Any] = []
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    face.sink.errors = [DOWN, DOWN, DOWN]
    writer = face.open_writer(
        max_rows=2,
        retry=Retry(2, clock=ManualClock()),
        dead_letters=tmp_path / "dead.jsonl",
        key=lambda row: "k",
        on_dead=lambda rows, error: dead.append((rows, error)),
        name="dead-test",
    )
    face.write(1, 2, 3)
    face.do("close")
    use_metrics(before)
    assert face.sink.ids == [3]
    dead_letters = list(DeadLetters.read(tmp_path / "dead.jsonl"))
    assert [each.item for each in dead_letters] == [{"id": 1}, {"id": 2}]
    assert {(each.reason, each.attempts, each.key) for each in dead_letters} == {
        ("SinkUnavailableError: the sink is down", 3, "k")
    }
    assert dead == [([{"id": 1}, {"id": 2}], DOWN)]
    assert writer.statistics().rows_dead == 2
    assert latest_events(1)[0].kind == "writer_dead_letters"
    assert metrics.value("writer_rows", outcome="dead", writer="dead-test") == 2
    assert metrics.value("writer_rows", outcome="written", writer="dead-test") == 1


def test_writer__one_row_at_fault__only_it_becomes_a_dead_letter(face: Face, tmp_path: Path) -> None:
    face.sink.errors = [SinkRowError("no such column", 1), SinkRowError("nor this one", 0)]
    face.open_writer(max_rows=4, dead_letters=str(tmp_path / "dead.jsonl"))
    face.write(1, 2, 3, 4)
    face.do("close")
    assert face.sink.ids == [3, 4]
    assert [each.item["id"] for each in DeadLetters.read(tmp_path / "dead.jsonl")] == [2, 1]
    assert face.sink.tries == 3, "a row at fault is not tried again"


def test_writer__no_dead_letters__raises_and_keeps_the_rows(face: Face) -> None:
    face.sink.errors = [DOWN]
    writer = face.open_writer(max_rows=2, retry=None)
    face.write(1, 2)
    until(lambda: [event for event in latest_events() if event.kind == "writer_failed"])
    with pytest.raises(SinkUnavailableError):
        face.write(3)
    face.write(4)
    face.do("flush")
    assert face.sink.ids == [1, 2, 4]
    face.do("close")
    assert writer.unwritten() == []


def test_writer__batch_fails_and_no_write_follows__on_error_is_called_at_once(face: Face) -> None:
    errors: list[Exception] = []
    face.sink.errors = [DOWN]
    face.open_writer(max_rows=2, retry=None, on_error=errors.append)
    face.write(1, 2)
    until(lambda: errors == [DOWN])
    face.do("close")
    assert face.sink.ids == [1, 2]
    assert errors == [DOWN]


def test_writer__abandoned__does_not_delay_the_end_of_the_program(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_exit, "EXIT_SECONDS", 0.01)
    writer = face.open_writer(max_rows=1, name="abandoned")
    face.sink.gate.clear()
    face.write(1)
    until(face.sink.write_called.is_set)
    with pytest.raises(TimeoutError):
        face.do("close", 0.01)
    at_exit._close_all()
    assert not [event for event in latest_events() if event[1:3] == ("writer_left_open", "abandoned")]
    face.sink.gate.set()
    until(lambda: writer.statistics().state == "closed")


def test_flush__batch_fails__raises_and_retries_on_the_next_call(face: Face) -> None:
    face.sink.errors = [DOWN]
    face.open_writer(retry=None)
    face.write(1)
    with pytest.raises(SinkUnavailableError):
        face.do("flush")
    face.do("close")
    assert face.sink.ids == [1]


def test_close__sink_is_down__raises_and_returns_the_rows_as_unwritten(face: Face) -> None:
    face.sink.errors = [DOWN] * 3
    writer = face.open_writer(max_rows=1, retry=None)
    face.write(1)
    until(lambda: face.sink.tries == 1)
    with pytest.raises(SinkUnavailableError):
        face.do("close")
    assert writer.unwritten() == [{"id": 1}]
    assert face.sink.closed == 1
    with pytest.raises(WriterClosedError, match="1 rows unwritten"):
        face.do("flush")


def test_writer__dead_letters_full__raises_and_keeps_the_rows(face: Face, tmp_path: Path) -> None:
    face.sink.errors = [DOWN]
    dead_letters = DeadLetters(tmp_path / "dead.jsonl", max_bytes=10)
    face.open_writer(max_rows=1, retry=None, dead_letters=dead_letters)
    face.write(1)
    with pytest.raises(DeadLettersFullError) as raised:
        face.do("flush")
    assert raised.value.__cause__ is DOWN
    face.do("close")
    assert face.sink.ids == [1]


def test_writer__hook_fails__is_raised_and_the_rows_are_not_written_again(face: Face) -> None:
    sizes: list[int] = []

    def on_written(rows: Sequence[Row]) -> None:
        sizes.append(len(rows))
        raise OSError("disk full: checkpoint")

    face.open_writer(max_rows=2, on_written=on_written)
    face.do("write_many", [{"id": number} for number in range(4)])
    with pytest.raises(OSError, match="checkpoint"):
        face.do("close")
    assert face.sink.ids == [0, 1, 2, 3]
    assert sizes == [2, 2]


def test_writer__sink_raises_system_exit__ends_the_writer_with_that_error(face: Face) -> None:
    face.sink.errors = [SystemExit(3)]
    writer = face.open_writer(max_rows=1)
    face.write(1)
    with pytest.raises(SystemExit):
        face.do("close")
    assert writer.unwritten() == [{"id": 1}]
    assert face.sink.closed == 1


@pytest.mark.parametrize("error", [OSError("no room"), SystemExit("no room")])
def test_close__sink_fails_to_close__raises_its_error(
    face: Face, tmp_path: Path, error: BaseException
) -> None:
    face.sink.close_error = error
    face.open_writer(dead_letters=tmp_path / "dead.jsonl")
    with pytest.raises(type(error), match="no room"):
        face.do("close")


def test_writer__hook_raises_system_exit__is_raised_and_rows_are_not_written_again(face: Face) -> None:
    def leave(rows: Sequence[Row]) -> None:
        raise SystemExit(3)

    writer = face.open_writer(on_written=leave)
    face.write(1)
    with pytest.raises(SystemExit):
        face.do("close")
    assert face.sink.ids == [1]
    assert writer.unwritten() == []


# -- opening and closing


def test_open__sink_fails__raises_and_may_be_called_again(face: Face) -> None:
    face.sink.open_error = DOWN
    face.make()
    with pytest.raises(SinkUnavailableError):
        face.do("open")
    face.sink.open_error = None
    face.do("open")
    face.write(1)
    face.do("close")
    assert face.sink.ids == [1]


def test_open__sink_fails__closes_the_dead_letters(face: Face, tmp_path: Path) -> None:
    face.sink.open_error = DOWN
    dead_letters = DeadLetters(tmp_path / "dead.jsonl")
    face.make(dead_letters=dead_letters)
    with pytest.raises(SinkUnavailableError):
        face.do("open")
    assert dead_letters.path.exists()
    assert dead_letters._file.descriptor is None


def test_open__dead_letters_fail__raises_before_any_row(face: Face, tmp_path: Path) -> None:
    face.make(dead_letters=tmp_path / "nowhere" / "dead.jsonl")
    with pytest.raises(DeadLettersError, match="No such file"):
        face.do("open")
    assert face.sink.opened == 0


def test_write__not_open__is_refused(face: Face) -> None:
    face.make()
    with pytest.raises(WriterClosedError, match="not open yet"):
        face.write(1)
    face.do("close")
    with pytest.raises(WriterClosedError, match="closed"):
        face.write(1)
    with pytest.raises(WriterClosedError, match="can be opened once"):
        face.do("open")


def test_close__callers_wait_for_room__they_get_an_error(face: Face) -> None:
    writer = face.open_writer(max_rows=1, capacity=1)
    face.sink.gate.clear()
    face.write(1)
    raised: list[Exception] = []

    def waits() -> None:
        try:
            writer.sync.write({"id": 2})
        except WriterClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    until(lambda: writer.statistics().writers_waiting)
    with pytest.raises(TimeoutError):
        face.do("close", 0.01)
    waiting.join()
    face.sink.gate.set()
    face.do("close")
    assert raised
    assert face.sink.ids == [1]


def test_close__sink_hangs__gives_up_after_the_timeout_and_writes_no_more(face: Face) -> None:
    writer = face.open_writer(max_rows=1, capacity=10)
    face.sink.gate.clear()
    face.write(1, 2)
    until(face.sink.write_called.is_set)
    with pytest.raises(TimeoutError, match="unwritten"):
        face.do("close", 0.01)
    assert writer.unwritten() == [{"id": 1}, {"id": 2}]
    face.sink.gate.set()
    with pytest.raises(WriterClosedError, match="abandoned"):
        face.do("close")
    assert face.sink.ids == [1]


def test_write__too_many_callers_wait__is_refused(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = face.open_writer(max_rows=1, capacity=1)
    face.sink.gate.clear()
    face.write(1)
    monkeypatch.setattr(writer._core._wait_queue, "join", lambda key: None)
    with pytest.raises(SinkFullError, match="callers wait to write already"):
        face.write(2)
    face.sink.gate.set()
    face.do("close")


def test_writer__wake_up_lost_to_an_interrupt__is_found_by_polling(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "POLL_SECONDS", 0.01)
    writer = face.open_writer(max_rows=1)
    writer._core._buffers[0].rows.append({"id": 1})  # as if an interrupt had come right after this
    until(lambda: face.sink.ids == [1])
    face.do("close")


def test_writer__with_statement__opens_and_closes() -> None:
    sink = ScriptedSink()
    writer = BatchWriter(sink)
    with writer.sync:
        writer.sync.write({"id": 1})
    assert (sink.ids, sink.opened, sink.closed) == ([1], 1, 1)


def test_writer__left_open__is_closed_when_the_program_ends(tmp_path: Path) -> None:
    program = (
        "from comporta import BatchWriter\n"
        "from comporta.pipeline.sinks import CsvSink\n"
        f"writer = BatchWriter(CsvSink({str(tmp_path / 'rows.csv')!r}))\n"
        "writer.sync.open()\n"
        "writer.sync.write({'id': 1})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert (tmp_path / "rows.csv").read_text() == '"id"\n1\n'


def test_exit__rows_cannot_be_written__publishes_how_many(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comporta.pipeline.writer import at_exit  # noqa: PLC0415 - what runs at the end of a program, run now

    face.sink.errors = [DOWN]
    face.open_writer(retry=None, name="left-open")
    face.write(1)
    at_exit._close_all()
    assert latest_events(1)[0].text == "1 rows are not written: the sink is down"


def test_fork__writer_open__rows_and_threads_stay_with_the_parent(face: Face, tmp_path: Path) -> None:
    writer = face.open_writer(sink=CsvSink(tmp_path / "rows.csv"))
    face.write(1)
    child = os.fork()
    if child == 0:
        try:
            writer.sync.write({"id": 2})
        except WriterClosedError:
            writer.sync.close()
            os._exit(0 if not writer.unwritten() else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    face.do("close")
    assert (tmp_path / "rows.csv").read_text() == '"id"\n1\n'


def test_fork__writer_not_open__can_be_opened_in_the_child() -> None:
    writer = BatchWriter(ScriptedSink())
    child = os.fork()
    if child == 0:
        with writer.sync:
            writer.sync.write({"id": 1})
        os._exit(0 if writer.statistics().rows_written == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_after_fork__writer_open__has_no_rows_of_the_parent(face: Face, tmp_path: Path) -> None:
    """Calls what runs in a forked child, here, where the test can look at the result."""
    sink = CsvSink(tmp_path / "rows.csv")
    dead_letters = DeadLetters(tmp_path / "dead.jsonl")
    writer = face.open_writer(sink=sink, dead_letters=dead_letters)
    face.write(1)
    buffer = writer._core._buffers[0]
    for thing in (writer._core, dead_letters._file, sink._file._file):
        thing.after_fork()
    assert buffer.rows
    assert writer.unwritten() == []
    assert writer.statistics().state == "closed"
    with pytest.raises(WriterClosedError):
        face.write(2)


def test_open__loop_ends_meanwhile__may_be_called_again() -> None:
    writer = BatchWriter(AsyncScriptedSink())
    writer._core.after_fork()
    flow = writer._core._first_buffer_flow(writer._core._buffers[0], lambda flow: None)
    next(flow)
    flow.close()
    assert writer.statistics().state == "not open yet"


# -- limiters


def test_writer__limiter__is_acquired_once_per_attempt(face: Face) -> None:
    clock = ManualClock()
    limiter = TokenBucketLimiter("1/minute", MemoryStore(clock))
    face.sink.errors = [DOWN]
    face.open_writer(max_rows=1, limiter=limiter)
    began_ns = clock.now_ns()
    face.write(1, 2, 3)
    face.do("close")
    assert face.sink.ids == [1, 2, 3]
    assert (clock.now_ns() - began_ns) / 1e9 == pytest.approx(180, abs=1), "four tries, the first at once"


class Gate:
    """A limiter that grants when ``open`` is set."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.open = threading.Event()
        self.answer = True
        self.sync = self

    def acquire(self, *, timeout: float | None) -> Any:
        self.called.set()
        assert self.open.wait(30)
        return self.answer


def test_writer__rows_arriving_while_the_limiter_waits__join_the_batch(face: Face) -> None:
    gate = Gate()
    face.open_writer(max_rows=3, limiter=gate, max_delay=0.01)
    face.write(1)
    until(gate.called.is_set)
    face.write(2, 3, 4)
    gate.open.set()
    face.do("close")
    assert [len(batch) for batch in face.sink.batches] == [3, 1]


def test_writer__limiter_refuses__counts_as_a_failed_attempt(face: Face, tmp_path: Path) -> None:
    gate = Gate()
    gate.open.set()
    gate.answer = False
    face.open_writer(limiter=gate, retry=None, dead_letters=tmp_path / "dead.jsonl")
    face.write(1)
    face.do("close")
    (dead_letter,) = DeadLetters.read(tmp_path / "dead.jsonl")
    assert dead_letter.reason.startswith(LimitReachedError.__name__)
    assert dead_letter.item == {"id": 1}


def test_writer__abandoned_while_the_limiter_waits__writes_nothing(face: Face) -> None:
    gate = Gate()
    writer = face.open_writer(max_rows=1, limiter=gate)
    face.write(1)
    until(gate.called.is_set)
    with pytest.raises(TimeoutError):
        face.do("close", 0.01)
    gate.open.set()
    with pytest.raises(WriterClosedError, match="abandoned"):
        face.do("close")
    assert face.sink.tries == 0
    assert writer.unwritten() == [{"id": 1}]


def test_writer__retry_with_a_budget__counts_calls(face: Face) -> None:
    retry = Retry(clock=ManualClock(), state="memory://")
    face.sink.errors = [DOWN]
    face.open_writer(max_rows=1, retry=retry)
    face.write(1)
    face.do("close")
    assert face.sink.ids == [1]


def test_writer__metrics_sink_fails__rows_are_still_written(face: Face, tmp_path: Path) -> None:
    class Broken:
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise OSError

        histogram = counter

    before = use_metrics(Broken())
    face.sink.errors = [SinkRowError("bad", 7), DOWN]
    face.open_writer(max_rows=1, retry=None, dead_letters=tmp_path / "dead.jsonl")
    face.write(1, 2)
    face.do("close")
    face.make()
    use_metrics(before)
    assert len(list(DeadLetters.read(tmp_path / "dead.jsonl"))) == 2, "an index out of range blames all"


# -- cancellation


def test_write__cancelled_while_it_waits__accepted_nothing() -> None:
    sink = ScriptedSink()

    async def main() -> None:
        async with BatchWriter(sink, max_rows=2, capacity=2) as writer:
            sink.gate.clear()
            await writer.write_many([{"id": 1}, {"id": 2}])
            for rows in ([{"id": 3}], [{"id": 4}, {"id": 5}]):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(writer.write_many(rows), 0.01)
            sink.gate.set()
            await writer.write({"id": 6})

    asyncio.run(main())
    assert sink.ids == [1, 2, 6]


def test_flush__cancelled_in_the_middle__loses_and_repeats_no_row() -> None:
    sink = ScriptedSink()

    async def main() -> None:
        async with BatchWriter(sink) as writer:
            sink.gate.clear()
            await writer.write({"id": 1})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.flush(), 0.02)
            sink.gate.set()
            await writer.flush()

    asyncio.run(main())
    assert sink.ids == [1]


@pytest.mark.parametrize("kind", [ScriptedSink, AsyncScriptedSink])
def test_writer__body_of_the_with_block_cancelled__writes_accepted_rows(kind: type[Any]) -> None:
    sink = kind()

    async def body(wrote: asyncio.Event) -> None:
        async with BatchWriter(sink, max_delay=NEVER_SECONDS) as writer:
            await writer.write({"id": 1})
            wrote.set()
            await asyncio.sleep(NEVER_SECONDS)  # sleeps: never ends; the test cancels it

    async def main() -> None:
        wrote = asyncio.Event()
        task = asyncio.create_task(body(wrote))
        await wrote.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert getattr(sink, "inner", sink).ids == [1]


def test_open__cancelled__closes_the_sink_that_opens_later() -> None:
    sink = ScriptedSink()
    sink.gate.clear()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(BatchWriter(sink).open(), 0.02)
        sink.gate.set()

    asyncio.run(main())
    until(lambda: sink.closed == 1)


def test_close__while_it_opens__closes() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    writer = BatchWriter(sink)
    opening = threading.Thread(target=writer.sync.open)
    opening.start()
    until(lambda: sink.opened)
    closing = threading.Thread(target=writer.sync.close)
    closing.start()
    until(lambda: writer.statistics().state == "closing")
    sink.gate.set()
    closing.join()
    opening.join()
    assert sink.closed == 1


def test_close__while_it_opens_and_the_sink_fails__raises_why() -> None:
    sink = ScriptedSink()
    sink.gate.clear()
    sink.open_error = DOWN
    writer = BatchWriter(sink)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.open(), 0.02)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        sink.gate.set()
        with pytest.raises(SinkUnavailableError):
            await closing

    asyncio.run(main())


@pytest.mark.parametrize("threads_available", [0, 2])
def test_open__no_further_thread_available__raises_and_can_be_closed(threads_available: int) -> None:
    sink = ScriptedSink()
    writer = BatchWriter(sink, key=lambda row: row["id"])
    left = [None] * threads_available

    def spawn(flow: Flow[None]) -> None:
        if not left:
            raise RuntimeError("no thread")
        left.pop()
        threading.Thread(target=run, args=(flow,)).start()

    with pytest.raises(RuntimeError, match="no thread"):
        run(writer._core.open_flow(spawn))
    with pytest.raises(WriterClosedError):
        writer.sync.write({"id": 1})
    writer.sync.close()
    assert sink.closed == sink.opened


def test_writer__destroyed_while_its_sink_closes__records_no_sink_error() -> None:
    flow = BatchWriter(ScriptedSink())._core._close_part_flow(call_effect(list))
    next(flow)
    flow.close()


# -- asynchronous sinks


def test_async_sink__rows__are_written_on_the_event_loop(tmp_path: Path) -> None:
    sink = AsyncScriptedSink()
    sink.inner.errors = [DOWN, SinkRowError("bad", 0), *[DOWN] * 2]
    loops: set[Any] = set()

    async def main() -> None:
        writer = BatchWriter(
            sink,
            max_rows=2,
            max_delay=0.01,
            key=lambda row: 0,
            threads=3,
            retry=Retry(1, clock=ManualClock()),
            limiter=TokenBucketLimiter("1000/s"),
            dead_letters=tmp_path / "dead.jsonl",
            on_written=lambda rows: loops.add(asyncio.get_running_loop()),
        )
        async with writer:
            for number in range(5):
                await writer.write({"id": number})
            await writer.flush()
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())
    dead = [each.item["id"] for each in DeadLetters.read(tmp_path / "dead.jsonl")]
    assert sorted(sink.inner.ids + dead) == [0, 1, 2, 3, 4]
    assert sink.inner.closed == 1


def test_async_sink__slow__makes_write_wait() -> None:
    sink = AsyncScriptedSink()

    async def main() -> None:
        async with BatchWriter(sink, max_rows=2, capacity=2) as writer:
            sink.inner.gate.clear()
            await writer.write_many([{"id": 1}, {"id": 2}])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.write({"id": 3}), 0.02)
            sink.inner.gate.set()
            await writer.write({"id": 4})

    asyncio.run(main())
    assert sink.inner.ids == [1, 2, 4]


def test_async_sink__opened_through_sync__is_a_type_error() -> None:
    with pytest.raises(TypeError, match="sink must be blocking"):
        BatchWriter(AsyncScriptedSink()).sync.open()


def test_async_sink__loop_ends_while_open__rows_stay_unwritten() -> None:
    sink = AsyncScriptedSink()

    async def main() -> BatchWriter:
        writer = BatchWriter(sink, max_rows=1)
        await writer.open()
        sink.inner.gate.clear()
        await writer.write({"id": 1})
        while not sink.inner.write_called.is_set():  # noqa: ASYNC110 - the sink has no loop to wake
            await asyncio.sleep(0)
        return writer

    writer = asyncio.run(main())
    assert writer.unwritten() == [{"id": 1}]
    assert sink.inner.closed == 1
    with pytest.raises(asyncio.CancelledError):
        writer.sync.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_async_sink__loop_was_closed__close_raises_with_the_count_of_rows() -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it would report the pending task
    writer = BatchWriter(AsyncScriptedSink(), max_delay=NEVER_SECONDS)
    loop.run_until_complete(writer.open())
    loop.run_until_complete(writer.write({"id": 1}))
    loop.close()
    with pytest.raises(WriterClosedError, match="1 rows unwritten"):
        writer.sync.close()
    del loop, writer
    gc.collect()  # destroys the task here, not during another test


ABANDON_WRITERS = """
import asyncio, gc
from comporta import BatchWriter

class Sink:
    async def open(self): ...
    async def write(self, rows): ...
    async def close(self): ...

def abandon_writer():
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)
    writer = BatchWriter(Sink(), max_delay=3600)
    loop.run_until_complete(writer.open())
    loop.run_until_complete(writer.write({"id": 1}))
    loop.close()

abandon_writer()
gc.collect()
gc.freeze()
for threshold in range(5, 45):
    gc.set_threshold(threshold, 2, 2)
    for _ in range(10):
        abandon_writer()
"""


def test_async_sink__loops_closed_while_open__the_garbage_collector_crashes_nothing() -> None:
    """Python 3.11 crashes if the task of a coroutine is destroyed while that coroutine is being closed."""
    environ = {**os.environ, "PYTHONMALLOC": "debug"}
    ran = subprocess.run(
        [sys.executable, "-c", ABANDON_WRITERS], env=environ, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


# -- invalid options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_rows": 0}, "max_rows must be 1 to 100000, got 0"),
        ({"max_rows": 2.5}, "max_rows must be an int, got 2.5"),
        ({"max_rows": True}, "max_rows must be an int, got True"),
        ({"max_delay": 0}, "max_delay must be 0.001 to 3600 seconds, got 0"),
        ({"max_delay": float("nan")}, "max_delay must be 0.001 to 3600 seconds, got nan"),
        ({"max_rows": 50, "capacity": 49}, "capacity must be 50 to 10000000, got 49"),
        ({"threads": 2}, "threads must be 1 without a key"),
        ({"threads": 65, "key": str}, "threads must be 1 to 64, got 65"),
        ({"key": "id"}, "key must be a function of a row or None, got 'id'"),
        ({"retry": 3}, "retry must be a Retry or None, got 3"),
        ({"name": "a b"}, "name must be"),
    ],
)
def test_writer__invalid_option__is_named_with_its_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        BatchWriter(ScriptedSink(), **options)


def test_writer__sink_without_methods__is_a_type_error() -> None:
    with pytest.raises(TypeError, match="sink must have the methods open, write and close"):
        BatchWriter(object())  # type: ignore[arg-type]  # the mistake under test


def test_writer__sink_partly_async__is_a_type_error() -> None:
    class Half(ScriptedSink):
        async def open(self) -> None:  # type: ignore[override]  # the mistake under test
            """A blocking writer would not await this."""

    with pytest.raises(TypeError, match="all blocking or all asynchronous"):
        BatchWriter(Half())  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["write", "write_many"])
def test_write__row_not_a_mapping__is_a_type_error(face: Face, verb: str) -> None:
    face.open_writer()
    with pytest.raises(TypeError, match="row must be a mapping"):
        face.do(verb, [7])
    with pytest.raises(ValueError, match="timeout must be"):
        face.do("close", -1)
    face.do("close")


def test_open__no_thread_available__raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("comporta.runtime.start_new_thread", none_left)
    with pytest.raises(RuntimeError, match="cannot start a thread to write batches"):
        BatchWriter(ScriptedSink()).sync.open()


def test_buffer_flow__destroyed_with_its_loop__closes_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BatchWriter(ScriptedSink())
    flow = writer._core._buffer_flow(writer._core._buffers[0])
    next(flow)
    flow.close()
    until(lambda: writer._core._state == core.CLOSING)
