"""The inside of a batch writer: takes rows, has lanes write them, and comes to an end without losing any.

Every lane is a flow that runs for the writer's whole life, on a thread of its own or as a task: it waits for
a batch and delivers it. The sink is opened by the first lane and closed by the last one that ends, so whoever
waits for that (and may be cancelled while waiting) is never the one who does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final, NoReturn

from comporta import forks
from comporta.clock import MONOTONIC
from comporta.errors import SinkFullError, WriterClosedError
from comporta.events import publish
from comporta.flow import Flow
from comporta.limits.waiting import WAITERS_MAX, Lines, Rest, Ticket
from comporta.pipeline.calls import Call
from comporta.pipeline.writing.book import Book
from comporta.pipeline.writing.delivery import AbandonedError, Delivery
from comporta.pipeline.writing.lanes import Batching, Key, Lane
from comporta.pipeline.writing.statistics import WriterStatistics, count_dead, count_written
from comporta.threads import clear_up

if TYPE_CHECKING:
    from comporta.pipeline.sinks.base import Row

NEW, OPENING, OPEN, CLOSING, CLOSED = "not open yet", "opening", "open", "closing", "closed"

LOOK_SECONDS: Final = 1.0
"""Whoever waits looks again after this: an interrupt may have come between a change and its bell."""

_LINE: Final = "room"

Spawn = Callable[[Flow[None]], None]
Written = Callable[[Sequence["Row"]], object]
Dead = Callable[[Sequence["Row"], Exception], object]
Stopped = Callable[[Exception], object]


class Gathering:
    """Rows between those who write and a sink. All verbs are flows, but for ``put``, which never waits."""

    def __init__(
        self,
        name: str,
        batching: Batching,
        delivery: Delivery,
        key: Key | None,
        *,
        awaited: bool,
        on_written: Written | None,
        on_dead: Dead | None,
        on_error: Stopped | None = None,
    ) -> None:
        self.name = name
        self.batching = batching
        self.awaited = awaited
        self.abandoned = False
        self._delivery = delivery
        self._key = key
        self._on_written = on_written
        self._on_dead = on_dead
        self._on_error = on_error
        self._lock = Lock()
        self._lanes = [Lane() for _ in range(batching.threads)]
        self._lines = Lines()
        self._queue = self._lines.by_key
        self._watchers: list[Ticket] = []
        self._state = NEW
        self._running = 0
        self._errors: list[tuple[Lane | None, BaseException]] = []
        self._batches = self._retries = self._dead = 0
        self._gone: Callable[[], bool] = lambda: False
        forks.register(self)

    # -- those who write

    def put(self, rows: Sequence[Row]) -> bool:
        """Take all of these, or none if there is no room; raises what went wrong before, if it did.

        There is room as long as fewer than ``capacity`` wait: a call with many rows may go over it once.
        """
        chosen = self._chosen(rows)
        with self._lock:
            if self._state is not OPEN or self._errors:
                self._refuse()
            if self._waiting() >= self.batching.capacity:
                return False
            called = [lane for lane, its in chosen if lane.add(its, self.batching.max_rows, monotonic_ns)]
        for lane in called:
            lane.ticket.call()
        return True

    def put_first(self, rows: Sequence[Row]) -> bool:
        """The same for those who find nobody in line before them."""
        return not self._queue and self.put(rows)

    def put_one(self, row: Row) -> bool:
        """The same for one row: the hot path."""
        if self._queue:
            return False
        lane = self._lanes[0] if self._key is None else self._lanes[hash(self._key(row)) % len(self._lanes)]
        with self._lock:
            if self._state is not OPEN or self._errors:
                self._refuse()
            if self._waiting() >= self.batching.capacity:
                return False
            called = lane.add((row,), self.batching.max_rows, monotonic_ns)
        if called:
            lane.ticket.call()
        return True

    def writing(self, rows: Sequence[Row]) -> Flow[None]:
        """Wait for room, in line, and take rows then; whoever is cancelled before has written nothing."""
        ticket = self._lines.join(_LINE)
        if ticket is None:
            raise SinkFullError(f"{self.name}: {WAITERS_MAX} wait already to write")
        try:
            while not (self._lines.is_first(_LINE, ticket) and self.put(rows)):
                yield Rest(MONOTONIC, ticket, LOOK_SECONDS)
        finally:
            clear_up(self._lines.leave, _LINE, ticket)

    def flushing(self) -> Flow[None]:
        """Wait until all that was taken so far is written or in dead letters; raises what went wrong."""
        with self._lock:
            marks = [(lane, lane.ask()) for lane in self._lanes]
        self._call_lanes()
        yield from self._watching(lambda: self._is_past(marks), None)

    # -- the beginning and the end

    def opening(self, spawn: Spawn, gone: Callable[[], bool] | None = None) -> Flow[None]:
        """Start, and wait until the sink is open; raises why it is not."""
        with self._lock:
            if self._state is not NEW:
                raise WriterClosedError(f"{self.name}: a writer is opened once, this one is {self._state}")
            self._state, self._running = OPENING, 1
            self._gone = gone or self._gone
        try:
            self._begin(spawn)
            yield from self._watching(lambda: self._state is not OPENING, None)
        except BaseException:
            clear_up(self._opened_for_nobody)
            raise

    def _opened_for_nobody(self) -> None:
        with self._lock:
            if self._state in (OPENING, OPEN):
                self._state = CLOSING
        self._call_lanes()

    def closing(self, timeout: float | None) -> Flow[None]:
        """Write what is left and close the sink; what fails again is raised, and the rows stay here."""
        with self._lock:
            if self._state is NEW:
                self._state = CLOSED
            if self._state in (OPENING, OPEN):
                self._state = CLOSING
                self._errors = [told for told in self._errors if told[0] is None]
                for lane in self._lanes:
                    lane.stopped = False  # it is tried once more; what fails again is raised then
        self._call_lanes()
        self._lines.call_first(_LINE)
        yield from self._watching(lambda: self._state in (CLOSED, NEW), timeout)  # new: never opened

    def unwritten(self) -> list[Row]:
        """Return the rows that are neither written nor in dead letters."""
        with self._lock:
            return [row for lane in self._lanes for row in lane.rows]

    def statistics(self) -> WriterStatistics:
        """Return the figures of this moment."""
        with self._lock:
            return WriterStatistics(
                state=self._state,
                rows_waiting=self._waiting(),
                rows_in_flight=sum(lane.taken for lane in self._lanes),
                capacity=self.batching.capacity,
                writers_waiting=self._lines.count(_LINE),
                rows_written=sum(lane.done for lane in self._lanes) - self._dead,
                rows_dead=self._dead,
                batches_written=self._batches,
                retries=self._retries,
            )

    def after_fork(self) -> None:
        """Leave rows and threads to the parent, which has them: here they would be written twice."""
        forks.renew(self._lock)
        self._lanes = [Lane() for _ in self._lanes]
        self._watchers = []
        self._errors = []
        self._running = 0
        if self._state is not NEW:
            self._state = CLOSED

    # -- the lanes

    def _begin(self, spawn: Spawn) -> None:
        """Start the first lane; where that cannot be, there is nobody who would ever close."""
        try:
            spawn(self._life(self._lanes[0], spawn))
        except Exception:
            with self._lock:
                self._state, self._running = NEW, 0
            raise

    def _life(self, lane: Lane, spawn: Spawn) -> Flow[None]:
        """The first lane: open the sink, and start the others."""
        try:
            if self._delivery.letters is not None:
                yield Call(self._delivery.letters.open)
            yield Call(self._delivery.sink.open, awaited=self.awaited)
        except BaseException as error:
            clear_up(self._not_opened, error)
            if isinstance(error, GeneratorExit):
                raise
            return
        self._start_others(spawn)
        with self._lock:
            self._state = OPEN if self._state is OPENING else self._state
        self._call_watchers()
        yield from self._lane(lane)

    def _not_opened(self, error: BaseException) -> None:
        with self._lock:
            self._state, self._running = NEW, 0
            self._errors.append((None, error))
        self._call_watchers()

    def _start_others(self, spawn: Spawn) -> None:
        """Start the other lanes; if one cannot be, those there are end again, and the sink is closed."""
        try:
            for other in self._lanes[1:]:
                with self._lock:
                    self._running += 1
                spawn(self._lane(other))
        except Exception as error:
            with self._lock:
                self._running -= 1
                self._state = CLOSING
                self._errors.append((None, error))
            self._call_lanes()

    def _lane(self, lane: Lane) -> Flow[None]:
        book = Book(self, lane)
        try:
            while (yield from self._is_due(lane)):
                error = yield from self._delivery.delivering(book)
                if error is not None:
                    self._stop(lane, error)
        except BaseException as error:  # a loop that ends, a sink that exits: the others still finish
            clear_up(self._broke_off, error)
            if isinstance(error, GeneratorExit):
                raise
        yield from self._ended()

    def _broke_off(self, error: BaseException) -> None:
        with self._lock:
            self._state = CLOSING
            self._errors.append((None, self._told(error)))
        self._call_lanes()

    def _told(self, error: BaseException) -> BaseException:
        """Return what users hear of an end: that a writer was given up is no error of the program's."""
        if isinstance(error, AbandonedError):
            return WriterClosedError(f"{self.name}: given up; see unwritten()")
        return error

    def _is_due(self, lane: Lane) -> Flow[bool]:
        """Wait until a batch is due; false at the end."""
        while True:
            with self._lock:
                closing = self._state is CLOSING
                wait_ns = lane.wait_ns(monotonic_ns(), self.batching, hurry=closing)
                if closing and (wait_ns is None or lane.stopped):
                    return False
            if wait_ns == 0 and not lane.stopped:
                return True
            seconds = LOOK_SECONDS if wait_ns is None or lane.stopped else wait_ns / 1e9
            yield Rest(MONOTONIC, lane.ticket, min(seconds, LOOK_SECONDS))

    def _ended(self) -> Flow[None]:
        """The last lane closes the sink."""
        with self._lock:
            self._running -= 1
            if self._running:
                return
        try:
            yield from self._finishing(Call(self._delivery.sink.close, awaited=self.awaited))
            if self._delivery.letters is not None:
                yield from self._finishing(Call(self._delivery.letters.close))
        finally:
            clear_up(self._closed)

    def _closed(self) -> None:
        self._state = CLOSED
        self._call_watchers()
        self._lines.call_first(_LINE)

    def _finishing(self, close: Call) -> Flow[None]:
        """Close something; whatever it raises is for who closes the writer."""
        try:
            yield close
        except GeneratorExit:
            raise
        except BaseException as error:
            with self._lock:
                self._errors.append((None, error))

    def _stop(self, lane: Lane, error: Exception) -> None:
        """Wait until somebody has heard of it; the rows stay where they are."""
        with self._lock:
            lane.stopped = True
            self._errors.append((lane, error))
        waiting = f"{len(lane.rows)} rows wait until somebody acts"
        publish("writer_failed", self.name, f"{type(error).__name__}: {error}; {waiting}", "error")
        on_error = self._on_error
        self._tell(None if on_error is None else lambda _: on_error(error), ())
        self._changed()

    # -- what becomes of rows

    def take(self, lane: Lane) -> list[Row]:
        """Return the next batch of a lane."""
        with self._lock:
            return lane.take(self.batching.max_rows)

    def written(self, lane: Lane, rows: Sequence[Row], seconds: float) -> None:
        """Let go of a batch that the sink has."""
        self._tell(self._on_written, rows)
        with self._lock:
            lane.settle(len(rows))
            self._batches += 1
        self._changed()
        count_written(self.name, len(rows), seconds)

    def buried(self, lane: Lane, rows: Sequence[Row], index: int | None, error: Exception) -> None:
        """Let go of what is in dead letters."""
        on_dead = self._on_dead
        self._tell(None if on_dead is None else lambda dead: on_dead(dead, error), rows)
        with self._lock:
            self._dead += len(rows)
            lane.settle(len(rows)) if index is None else lane.drop(index)
        self._changed()
        publish("writer_dead_letters", self.name, f"{len(rows)} rows: {type(error).__name__}: {error}")
        count_dead(self.name, len(rows))

    def tried_again(self) -> None:
        """Count a retry."""
        self._retries += 1

    def _tell(self, listener: Callable[[Sequence[Row]], object] | None, rows: Sequence[Row]) -> None:
        """Call a hook; the rows are settled all the same, and who writes next hears what it raised."""
        try:
            if listener is not None:
                listener(rows)
        except BaseException as error:  # the sink has the rows, even if the hook would end the program
            with self._lock:
                if all(lane is not None for lane, _ in self._errors):  # one of these is enough
                    self._errors.append((None, error))
            publish("writer_failed", self.name, f"a hook failed: {type(error).__name__}: {error}", "error")

    # -- the rest

    def _watching(self, is_over: Callable[[], bool], timeout: float | None) -> Flow[None]:
        deadline = None if timeout is None else monotonic() + timeout
        ticket = Ticket()
        self._watchers.append(ticket)
        try:
            while not is_over():
                if self._state in (OPENING, OPEN):
                    self._raise()
                self._check_alive()
                left = LOOK_SECONDS if deadline is None else deadline - monotonic()
                if left <= 0:
                    self.abandoned = True
                    raise TimeoutError(f"{self.name}: not closed within {timeout:g} s; see unwritten()")
                yield Rest(MONOTONIC, ticket, min(left, LOOK_SECONDS))
            self._raise()
        finally:
            self._watchers.remove(ticket)

    def _check_alive(self) -> None:
        if self._state is CLOSED or self._gone():
            raise WriterClosedError(f"{self.name}: ended with {len(self.unwritten())} rows unwritten")

    def _raise(self) -> None:
        """Raise what went wrong, if something did, once; the lane that stopped for it goes on."""
        with self._lock:
            if self._errors:
                self._refuse()

    def _refuse(self) -> NoReturn:
        """Raise why no row is taken; the lock is held."""
        if not self._errors:
            raise WriterClosedError(f"{self.name}: {self._state}; rows are taken inside `async with writer`")
        lane, error = self._errors.pop(0)
        if lane is not None:
            lane.stopped = False
            lane.ticket.call()
        try:
            raise error
        finally:
            del error  # by its traceback it would hold this frame, and with it itself

    def _chosen(self, rows: Sequence[Row]) -> list[tuple[Lane, list[Row]]]:
        """Return which rows go into which lane."""
        if self._key is None:
            return [(self._lanes[0], list(rows))]
        lanes: dict[int, list[Row]] = {}
        for row in rows:
            lanes.setdefault(hash(self._key(row)) % len(self._lanes), []).append(row)
        return [(self._lanes[number], its) for number, its in lanes.items()]

    def _waiting(self) -> int:
        if len(self._lanes) == 1:
            return len(self._lanes[0].rows)
        return sum(len(lane.rows) for lane in self._lanes)

    def _is_past(self, marks: list[tuple[Lane, int]]) -> bool:
        return all(lane.done >= mark for lane, mark in marks)

    def _changed(self) -> None:
        self._call_watchers()
        if self._queue:
            self._lines.call_first(_LINE)

    def _call_lanes(self) -> None:
        for lane in self._lanes:
            lane.ticket.call()

    def _call_watchers(self) -> None:
        for ticket in list(self._watchers):
            ticket.call()
