"""What a batch writer promises, through both of its faces."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.writing import NEVER_SECONDS, AwaitedSink, Face, ToldSink, until

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
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.pipeline.calls import Call
from comporta.pipeline.letters import DeadLetters
from comporta.pipeline.sinks import CsvSink, Row
from comporta.pipeline.writing import exits, gathering
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

DOWN = SinkUnavailableError("the sink is down")


@pytest.fixture(params=["awaiting", "blocking"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    with asyncio.Runner() as runner:
        yield Face(runner if request.param == "awaiting" else None)


# -- batches


def test_writer__max_rows__is_a_batch_at_once(face: Face) -> None:
    face.opened(max_rows=3)
    face.write(1, 2, 3, 4)
    until(lambda: face.sink.ids == [1, 2, 3])
    face.do("close")
    assert face.sink.batches == [[{"id": 1}, {"id": 2}, {"id": 3}], [{"id": 4}]]
    assert (face.sink.opened, face.sink.closed) == (1, 1)


def test_writer__fewer_rows__are_written_after_the_delay(face: Face) -> None:
    face.opened(max_rows=50, max_delay=0.02)
    face.write(1, 2)
    until(lambda: face.sink.ids == [1, 2])
    face.do("close")


def test_writer__flush__writes_all_there_is_and_waits_for_it(face: Face) -> None:
    face.opened(max_rows=2)
    face.do("write_many", [{"id": number} for number in range(5)])
    face.do("flush")
    assert face.sink.ids == [0, 1, 2, 3, 4]
    assert [len(batch) for batch in face.sink.batches] == [2, 2, 1]
    face.do("flush")
    face.do("write_many", [])
    face.do("close")
    assert face.sink.tries == 3


def test_writer__closed_twice__is_closed_once(face: Face) -> None:
    face.opened()
    face.do("close")
    face.do("close")
    assert face.sink.closed == 1


def test_writer__slow_sink__pushes_back_and_loses_nothing(face: Face) -> None:
    writer = face.opened(max_rows=2, capacity=4)
    face.sink.go.clear()
    face.do("write_many", [{"id": 0}, {"id": 1}, {"id": 2}, {"id": 3}])
    later = threading.Thread(target=lambda: writer.sync.write_many([{"id": 4}, {"id": 5}]))
    later.start()
    until(lambda: writer.statistics().writers_waiting)
    assert writer.statistics().rows_waiting == 4
    face.sink.go.set()
    later.join()
    face.do("close")
    assert face.sink.ids == [0, 1, 2, 3, 4, 5]


def test_writer__statistics__tell_how_it_stands(face: Face) -> None:
    writer = face.make(max_rows=2)
    assert writer.statistics().state == "not open yet"
    face.do("open")
    face.sink.go.clear()
    face.write(1, 2, 3)
    until(lambda: writer.statistics().rows_in_flight == 2)
    told = writer.statistics()
    assert (told.state, told.rows_waiting, told.capacity, told.rows_written) == ("open", 3, 20, 0)
    face.sink.go.set()
    face.do("close")
    told = writer.statistics()
    assert (told.state, told.rows_waiting, told.rows_written, told.batches_written) == ("closed", 0, 3, 2)


def test_writer__rows_of_one_key__stay_in_order_while_others_go_at_the_same_time(face: Face) -> None:
    meeting = threading.Barrier(2, timeout=30)
    kept: list[Row] = []
    met: set[int] = set()

    class Meeting(ToldSink):
        def write(self, rows: Sequence[Row]) -> None:
            if threading.get_ident() not in met:
                met.add(threading.get_ident())
                meeting.wait()  # passes only when two batches are written at the same time
            kept.extend(rows)

    face.opened(sink=Meeting(), key=lambda row: row["key"], threads=2, max_rows=1, capacity=1000)
    rows = [{"id": number, "key": number % 2} for number in range(100)]
    face.do("write_many", rows[:50])
    for row in rows[50:]:
        face.do("write", row)
    face.do("close")
    for key in (0, 1):
        assert [row for row in kept if row["key"] == key] == [row for row in rows if row["key"] == key]


def test_writer__no_key__writes_one_batch_at_a_time(face: Face) -> None:
    face.opened(max_rows=1, capacity=100)
    face.write(*range(20))
    face.do("close")
    assert face.sink.ids == list(range(20))
    assert face.sink.most_at_once == 1


def test_writer__threads_and_coroutines_together__every_row_once() -> None:
    sink = ToldSink()

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


def test_writer__sink_fails_for_a_while__tries_again(face: Face) -> None:
    face.sink.errors = [DOWN, OSError("gone")]
    writer = face.opened(max_rows=2)
    face.write(1, 2)
    face.do("close")
    assert face.sink.ids == [1, 2]
    assert writer.statistics().retries == 2


def test_writer__fails_for_good__goes_to_dead_letters_with_the_reason(face: Face, tmp_path: Path) -> None:
    dead: list[Any] = []
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    face.sink.errors = [DOWN, DOWN, DOWN]
    writer = face.opened(
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
    letters = list(DeadLetters.read(tmp_path / "dead.jsonl"))
    assert [letter.item for letter in letters] == [{"id": 1}, {"id": 2}]
    assert {(letter.reason, letter.attempts, letter.key) for letter in letters} == {
        ("SinkUnavailableError: the sink is down", 3, "k")
    }
    assert dead == [([{"id": 1}, {"id": 2}], DOWN)]
    assert writer.statistics().rows_dead == 2
    assert latest_events(1)[0].kind == "writer_dead_letters"
    assert metrics.value("writer_rows", outcome="dead", writer="dead-test") == 2
    assert metrics.value("writer_rows", outcome="written", writer="dead-test") == 1


def test_writer__one_row_at_fault__takes_no_others_with_it(face: Face, tmp_path: Path) -> None:
    face.sink.errors = [SinkRowError("no such place", 1), SinkRowError("nor this", 0)]
    face.opened(max_rows=4, dead_letters=str(tmp_path / "dead.jsonl"))
    face.write(1, 2, 3, 4)
    face.do("close")
    assert face.sink.ids == [3, 4]
    assert [letter.item["id"] for letter in DeadLetters.read(tmp_path / "dead.jsonl")] == [2, 1]
    assert face.sink.tries == 3, "a row at fault is not tried again"


def test_writer__no_dead_letters__says_so_and_keeps_the_rows(face: Face) -> None:
    face.sink.errors = [DOWN]
    writer = face.opened(max_rows=2, retry=None)
    face.write(1, 2)
    until(lambda: [event for event in latest_events() if event.kind == "writer_failed"])
    with pytest.raises(SinkUnavailableError):
        face.write(3)
    face.write(4)
    face.do("flush")
    assert face.sink.ids == [1, 2, 4]
    face.do("close")
    assert writer.unwritten() == []


def test_writer__fails_and_nobody_writes__who_listens_hears_of_it_at_once(face: Face) -> None:
    heard: list[Exception] = []
    face.sink.errors = [DOWN]
    face.opened(max_rows=2, retry=None, on_error=heard.append)
    face.write(1, 2)
    until(lambda: heard == [DOWN])
    face.do("close")
    assert face.sink.ids == [1, 2]
    assert heard == [DOWN]


def test_writer__given_up__does_not_hold_up_the_end_of_the_program(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "EXIT_SECONDS", 0.01)
    writer = face.opened(max_rows=1, name="given-up")
    face.sink.go.clear()
    face.write(1)
    until(face.sink.asked.is_set)
    with pytest.raises(TimeoutError):
        face.do("close", 0.01)
    exits._close_all()
    assert not [event for event in latest_events() if event[1:3] == ("writer_left_open", "given-up")]
    face.sink.go.set()
    until(lambda: writer.statistics().state == "closed")


def test_writer__flush_of_what_fails__raises_and_is_tried_again(face: Face) -> None:
    face.sink.errors = [DOWN]
    face.opened(retry=None)
    face.write(1)
    with pytest.raises(SinkUnavailableError):
        face.do("flush")
    face.do("close")
    assert face.sink.ids == [1]


def test_writer__closed_while_the_sink_is_down__raises_and_hands_out_the_rows(face: Face) -> None:
    face.sink.errors = [DOWN] * 3
    writer = face.opened(max_rows=1, retry=None)
    face.write(1)
    until(lambda: face.sink.tries == 1)
    with pytest.raises(SinkUnavailableError):
        face.do("close")
    assert writer.unwritten() == [{"id": 1}]
    assert face.sink.closed == 1
    with pytest.raises(WriterClosedError, match="1 rows unwritten"):
        face.do("flush")


def test_writer__dead_letters_full__stops_and_keeps_the_rows(face: Face, tmp_path: Path) -> None:
    face.sink.errors = [DOWN]
    letters = DeadLetters(tmp_path / "dead.jsonl", max_bytes=10)
    face.opened(max_rows=1, retry=None, dead_letters=letters)
    face.write(1)
    with pytest.raises(DeadLettersFullError) as raised:
        face.do("flush")
    assert raised.value.__cause__ is DOWN
    face.do("close")
    assert face.sink.ids == [1]


def test_writer__hook_fails__is_heard_and_the_rows_are_not_written_again(face: Face) -> None:
    told: list[int] = []

    def on_written(rows: Sequence[Row]) -> None:
        told.append(len(rows))
        raise OSError("no room for a checkpoint")

    face.opened(max_rows=2, on_written=on_written)
    face.do("write_many", [{"id": number} for number in range(4)])
    with pytest.raises(OSError, match="checkpoint"):
        face.do("close")
    assert face.sink.ids == [0, 1, 2, 3]
    assert told == [2, 2]


def test_writer__sink_that_exits__ends_the_writer_and_says_why(face: Face) -> None:
    face.sink.errors = [SystemExit(3)]
    writer = face.opened(max_rows=1)
    face.write(1)
    with pytest.raises(SystemExit):
        face.do("close")
    assert writer.unwritten() == [{"id": 1}]
    assert face.sink.closed == 1


@pytest.mark.parametrize("error", [OSError("no room"), SystemExit("no room")])
def test_writer__sink_that_cannot_be_closed__says_so(
    face: Face, tmp_path: Path, error: BaseException
) -> None:
    face.sink.close_error = error
    face.opened(dead_letters=tmp_path / "dead.jsonl")
    with pytest.raises(type(error), match="no room"):
        face.do("close")


def test_writer__hook_that_exits__is_heard_and_the_rows_are_not_written_again(face: Face) -> None:
    def leave(rows: Sequence[Row]) -> None:
        raise SystemExit(3)

    writer = face.opened(on_written=leave)
    face.write(1)
    with pytest.raises(SystemExit):
        face.do("close")
    assert face.sink.ids == [1]
    assert writer.unwritten() == []


# -- the beginning and the end


def test_writer__sink_that_cannot_be_opened__says_so_and_may_be_tried_again(face: Face) -> None:
    face.sink.open_error = DOWN
    face.make()
    with pytest.raises(SinkUnavailableError):
        face.do("open")
    face.sink.open_error = None
    face.do("open")
    face.write(1)
    face.do("close")
    assert face.sink.ids == [1]


def test_writer__letters_that_cannot_be_opened__are_told_before_any_row(face: Face, tmp_path: Path) -> None:
    face.make(dead_letters=tmp_path / "nowhere" / "dead.jsonl")
    with pytest.raises(DeadLettersError, match="No such file"):
        face.do("open")
    assert face.sink.opened == 0


def test_writer__not_open__takes_no_rows(face: Face) -> None:
    face.make()
    with pytest.raises(WriterClosedError, match="not open yet"):
        face.write(1)
    face.do("close")
    with pytest.raises(WriterClosedError, match="closed"):
        face.write(1)
    with pytest.raises(WriterClosedError, match="opened once"):
        face.do("open")


def test_writer__closed_while_somebody_waits_for_room__tells_them(face: Face) -> None:
    writer = face.opened(max_rows=1, capacity=1)
    face.sink.go.clear()
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
    face.sink.go.set()
    face.do("close")
    assert raised
    assert face.sink.ids == [1]


def test_writer__hung_sink__is_given_up_after_the_time_and_gets_no_more(face: Face) -> None:
    writer = face.opened(max_rows=1, capacity=10)
    face.sink.go.clear()
    face.write(1, 2)
    until(face.sink.asked.is_set)
    with pytest.raises(TimeoutError, match="unwritten"):
        face.do("close", 0.01)
    assert writer.unwritten() == [{"id": 1}, {"id": 2}]
    face.sink.go.set()
    with pytest.raises(WriterClosedError, match="given up"):
        face.do("close")
    assert face.sink.ids == [1]


def test_writer__too_many_wait__is_refused(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = face.opened(max_rows=1, capacity=1)
    face.sink.go.clear()
    face.write(1)
    monkeypatch.setattr(writer._gathering._lines, "join", lambda key: None)
    with pytest.raises(SinkFullError, match="wait already"):
        face.write(2)
    face.sink.go.set()
    face.do("close")


def test_writer__bell_lost_to_an_interrupt__is_made_up_for(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "LOOK_SECONDS", 0.01)
    writer = face.opened(max_rows=1)
    writer._gathering._lanes[0].rows.append({"id": 1})  # as if the thread had been stopped just here
    until(lambda: face.sink.ids == [1])
    face.do("close")


def test_writer__with_statement__opens_and_closes() -> None:
    sink = ToldSink()
    writer = BatchWriter(sink)
    with writer.sync:
        writer.sync.write({"id": 1})
    assert (sink.ids, sink.opened, sink.closed) == ([1], 1, 1)


def test_writer__forgotten__is_closed_when_the_program_ends(tmp_path: Path) -> None:
    program = (
        "from comporta import BatchWriter\n"
        "from comporta.pipeline.sinks import CsvSink\n"
        f"writer = BatchWriter(CsvSink({str(tmp_path / 'rows.csv')!r}))\n"
        "writer.sync.open()\n"
        "writer.sync.write({'id': 1})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert (tmp_path / "rows.csv").read_text() == '"id"\n1\n'


def test_writer__end_of_the_program__says_what_it_could_not_write(
    face: Face, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comporta.pipeline.writing import exits  # noqa: PLC0415 - what runs at the end of a program, run now

    face.sink.errors = [DOWN]
    face.opened(retry=None, name="left-open")
    face.write(1)
    exits._close_all()
    assert latest_events(1)[0].text == "1 rows are not written: the sink is down"


def test_writer__forked__leaves_rows_and_threads_to_the_parent(face: Face, tmp_path: Path) -> None:
    writer = face.opened(sink=CsvSink(tmp_path / "rows.csv"))
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


def test_writer__forked_before_it_is_open__opens_in_the_child() -> None:
    writer = BatchWriter(ToldSink())
    child = os.fork()
    if child == 0:
        with writer.sync:
            writer.sync.write({"id": 1})
        os._exit(0 if writer.statistics().rows_written == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_writer__told_of_a_fork__has_nothing_of_the_parents(face: Face, tmp_path: Path) -> None:
    """What the child is told, told here, where it can be looked at."""
    sink = CsvSink(tmp_path / "rows.csv")
    letters = DeadLetters(tmp_path / "dead.jsonl")
    writer = face.opened(sink=sink, dead_letters=letters)
    face.write(1)
    lane = writer._gathering._lanes[0]
    for thing in (writer._gathering, letters._file, sink._file._file):
        thing.after_fork()
    assert lane.rows
    assert writer.unwritten() == []
    assert writer.statistics().state == "closed"
    with pytest.raises(WriterClosedError):
        face.write(2)


def test_writer__loop_that_ends_while_it_opens__may_be_opened_again() -> None:
    writer = BatchWriter(AwaitedSink())
    writer._gathering.after_fork()
    life = writer._gathering._life(writer._gathering._lanes[0], lambda flow: None)
    next(life)
    life.close()
    assert writer.statistics().state == "not open yet"


# -- quotas


def test_writer__limiter__is_asked_once_for_each_try(face: Face) -> None:
    clock = ManualClock()
    limiter = TokenBucketLimiter("1/minute", MemoryStore(clock))
    face.sink.errors = [DOWN]
    face.opened(max_rows=1, limiter=limiter)
    began_ns = clock.now_ns()
    face.write(1, 2, 3)
    face.do("close")
    assert face.sink.ids == [1, 2, 3]
    assert (clock.now_ns() - began_ns) / 1e9 == pytest.approx(180, abs=1), "four tries, the first at once"


class Gate:
    """A limiter that lets through when told."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.open = threading.Event()
        self.answer = True
        self.sync = self

    def acquire(self, *, timeout: float | None) -> Any:
        self.asked.set()
        assert self.open.wait(30)
        return self.answer


def test_writer__rows_that_come_while_the_quota_makes_it_wait__go_along(face: Face) -> None:
    gate = Gate()
    face.opened(max_rows=3, limiter=gate, max_delay=0.01)
    face.write(1)
    until(gate.asked.is_set)
    face.write(2, 3, 4)
    gate.open.set()
    face.do("close")
    assert [len(batch) for batch in face.sink.batches] == [3, 1]


def test_writer__limiter_that_refuses__is_a_failure_like_others(face: Face, tmp_path: Path) -> None:
    gate = Gate()
    gate.open.set()
    gate.answer = False
    face.opened(limiter=gate, retry=None, dead_letters=tmp_path / "dead.jsonl")
    face.write(1)
    face.do("close")
    (letter,) = DeadLetters.read(tmp_path / "dead.jsonl")
    assert letter.reason.startswith(LimitReachedError.__name__)
    assert letter.item == {"id": 1}


def test_writer__given_up_while_it_waits_for_the_quota__writes_nothing(face: Face) -> None:
    gate = Gate()
    writer = face.opened(max_rows=1, limiter=gate)
    face.write(1)
    until(gate.asked.is_set)
    with pytest.raises(TimeoutError):
        face.do("close", 0.01)
    gate.open.set()
    with pytest.raises(WriterClosedError, match="given up"):
        face.do("close")
    assert face.sink.tries == 0
    assert writer.unwritten() == [{"id": 1}]


def test_writer__retry_with_a_budget__counts_its_calls(face: Face) -> None:
    retry = Retry(clock=ManualClock(), state="memory://")
    face.sink.errors = [DOWN]
    face.opened(max_rows=1, retry=retry)
    face.write(1)
    face.do("close")
    assert face.sink.ids == [1]


def test_writer__metrics_that_fail__disturb_nobody(face: Face, tmp_path: Path) -> None:
    class Broken:
        def counter(self, name: str, value: float, /, **labels: str) -> None:
            raise OSError

        histogram = counter

    before = use_metrics(Broken())
    face.sink.errors = [SinkRowError("bad", 7), DOWN]
    face.opened(max_rows=1, retry=None, dead_letters=tmp_path / "dead.jsonl")
    face.write(1, 2)
    face.do("close")
    face.make()
    use_metrics(before)
    assert len(list(DeadLetters.read(tmp_path / "dead.jsonl"))) == 2, "an index out of range blames all"


# -- cancellation


def test_writer__write_cancelled_while_it_waits__has_taken_nothing() -> None:
    sink = ToldSink()

    async def main() -> None:
        async with BatchWriter(sink, max_rows=2, capacity=2) as writer:
            sink.go.clear()
            await writer.write_many([{"id": 1}, {"id": 2}])
            for rows in ([{"id": 3}], [{"id": 4}, {"id": 5}]):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(writer.write_many(rows), 0.01)
            sink.go.set()
            await writer.write({"id": 6})

    asyncio.run(main())
    assert sink.ids == [1, 2, 6]


def test_writer__flush_cancelled_in_the_middle__loses_and_doubles_nothing() -> None:
    sink = ToldSink()

    async def main() -> None:
        async with BatchWriter(sink) as writer:
            sink.go.clear()
            await writer.write({"id": 1})
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.flush(), 0.02)
            sink.go.set()
            await writer.flush()

    asyncio.run(main())
    assert sink.ids == [1]


@pytest.mark.parametrize("kind", [ToldSink, AwaitedSink])
def test_writer__body_cancelled__writes_what_it_took(kind: type[Any]) -> None:
    sink = kind()

    async def body(wrote: asyncio.Event) -> None:
        async with BatchWriter(sink, max_delay=NEVER_SECONDS) as writer:
            await writer.write({"id": 1})
            wrote.set()
            await asyncio.sleep(NEVER_SECONDS)

    async def main() -> None:
        wrote = asyncio.Event()
        task = asyncio.create_task(body(wrote))
        await wrote.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert getattr(sink, "told", sink).ids == [1]


def test_writer__open_cancelled__closes_what_opens_for_nobody() -> None:
    sink = ToldSink()
    sink.go.clear()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(BatchWriter(sink).open(), 0.02)
        sink.go.set()

    asyncio.run(main())
    until(lambda: sink.closed == 1)


def test_writer__closed_while_it_opens__closes() -> None:
    sink = ToldSink()
    sink.go.clear()
    writer = BatchWriter(sink)
    opening = threading.Thread(target=writer.sync.open)
    opening.start()
    until(lambda: sink.opened)
    closing = threading.Thread(target=writer.sync.close)
    closing.start()
    until(lambda: writer.statistics().state == "closing")
    sink.go.set()
    closing.join()
    opening.join()
    assert sink.closed == 1


def test_writer__closed_while_it_opens_and_cannot__says_why() -> None:
    sink = ToldSink()
    sink.go.clear()
    sink.open_error = DOWN
    writer = BatchWriter(sink)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.open(), 0.02)
        closing = asyncio.create_task(writer.close())
        await asyncio.sleep(0)
        sink.go.set()
        with pytest.raises(SinkUnavailableError):
            await closing

    asyncio.run(main())


@pytest.mark.parametrize("threads_to_be_had", [0, 2])
def test_writer__no_thread_to_be_had__says_so_and_can_be_closed(threads_to_be_had: int) -> None:
    sink = ToldSink()
    writer = BatchWriter(sink, key=lambda row: row["id"])
    left = [None] * threads_to_be_had

    def spawn(flow: Flow[None]) -> None:
        if not left:
            raise RuntimeError("no thread")
        left.pop()
        threading.Thread(target=run, args=(flow,)).start()

    with pytest.raises(RuntimeError, match="no thread"):
        run(writer._gathering.opening(spawn))
    with pytest.raises(WriterClosedError):
        writer.sync.write({"id": 1})
    writer.sync.close()
    assert sink.closed == sink.opened


def test_writer__forgotten_while_its_sink_closes__is_no_error_of_the_sinks() -> None:
    flow = BatchWriter(ToldSink())._gathering._finishing(Call(list))
    next(flow)
    flow.close()


# -- sinks that are awaited


def test_writer__awaited_sink__does_the_same_on_the_loop(tmp_path: Path) -> None:
    sink = AwaitedSink()
    sink.told.errors = [DOWN, SinkRowError("bad", 0), *[DOWN] * 2]
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
    dead = [letter.item["id"] for letter in DeadLetters.read(tmp_path / "dead.jsonl")]
    assert sorted(sink.told.ids + dead) == [0, 1, 2, 3, 4]
    assert sink.told.closed == 1


def test_writer__awaited_sink_on_a_slow_day__pushes_back() -> None:
    sink = AwaitedSink()

    async def main() -> None:
        async with BatchWriter(sink, max_rows=2, capacity=2) as writer:
            sink.told.go.clear()
            await writer.write_many([{"id": 1}, {"id": 2}])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(writer.write({"id": 3}), 0.02)
            sink.told.go.set()
            await writer.write({"id": 4})

    asyncio.run(main())
    assert sink.told.ids == [1, 2, 4]


def test_writer__awaited_sink__needs_a_loop() -> None:
    with pytest.raises(TypeError, match="event loop"):
        BatchWriter(AwaitedSink()).sync.open()


def test_writer__loop_that_ends_with_it_open__keeps_what_was_not_written() -> None:
    sink = AwaitedSink()

    async def main() -> BatchWriter:
        writer = BatchWriter(sink, max_rows=1)
        await writer.open()
        sink.told.go.clear()
        await writer.write({"id": 1})
        await asyncio.sleep(0.02)
        return writer

    writer = asyncio.run(main())
    assert writer.unwritten() == [{"id": 1}]
    assert sink.told.closed == 1
    with pytest.raises(asyncio.CancelledError):
        writer.sync.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_writer__loop_closed_under_it__says_what_is_left() -> None:
    loop = asyncio.new_event_loop()
    writer = BatchWriter(AwaitedSink(), max_delay=NEVER_SECONDS)
    loop.run_until_complete(writer.open())
    loop.run_until_complete(writer.write({"id": 1}))
    loop.close()
    with pytest.raises(WriterClosedError, match="1 rows unwritten"):
        writer.sync.close()


# -- bad input


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_rows": 0}, "max_rows must be 1 to 100000, got 0"),
        ({"max_rows": 2.5}, "max_rows must be an int, got 2.5"),
        ({"max_rows": True}, "max_rows must be an int, got True"),
        ({"max_delay": 0}, "max_delay must be 0.001 to 3600, got 0"),
        ({"max_delay": float("nan")}, "max_delay must be 0.001 to 3600, got nan"),
        ({"max_rows": 50, "capacity": 49}, "capacity must be 50 to 10000000, got 49"),
        ({"threads": 2}, "threads must be 1 where there is no key"),
        ({"threads": 65, "key": str}, "threads must be 1 to 64, got 65"),
        ({"key": "id"}, "key must be a function of a row or None, got 'id'"),
        ({"retry": 3}, "retry must be a Retry or None, got 3"),
        ({"name": "a b"}, "name must be"),
    ],
)
def test_writer__bad_option__is_named_with_its_range(options: dict[str, Any], said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        BatchWriter(ToldSink(), **options)


def test_writer__what_is_no_sink__is_named() -> None:
    with pytest.raises(TypeError, match="sink must have open, write and close"):
        BatchWriter(object())  # type: ignore[arg-type]  # that is what is tried


def test_writer__sink_half_awaited__is_named() -> None:
    class Half(ToldSink):
        async def open(self) -> None:  # type: ignore[override]  # that is the mistake
            """Nobody would await this."""

    with pytest.raises(TypeError, match="all blocking or all awaited"):
        BatchWriter(Half())  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["write", "write_many"])
def test_writer__what_is_no_row__is_named(face: Face, verb: str) -> None:
    face.opened()
    with pytest.raises(TypeError, match="row must be a mapping"):
        face.do(verb, [7])
    with pytest.raises(ValueError, match="timeout must be"):
        face.do("close", -1)
    face.do("close")


def test_writer__no_thread_to_be_had__says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("comporta.threads.start_new_thread", none_left)
    with pytest.raises(RuntimeError, match="no thread can be had to write batches on"):
        BatchWriter(ToldSink()).sync.open()


def test_writer__lane_ends_with_its_loop__the_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = BatchWriter(ToldSink())
    flow = writer._gathering._lane(writer._gathering._lanes[0])
    next(flow)
    flow.close()
    until(lambda: writer._gathering._state == gathering.CLOSING)
