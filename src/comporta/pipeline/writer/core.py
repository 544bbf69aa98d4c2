"""The core of a batch writer: accepts rows, has them written in batches, and closes without losing any.

Each buffer has a flow that runs for the writer's whole life, on a thread of its own or as a task. It waits
until a batch is due and delivers it. The flow of the first buffer opens the sink, and the last flow that ends
closes it. So callers only wait for the sink to be opened or closed, and cancelling a caller never interrupts
that.

This module does not know how a batch is delivered (``delivery.py``), what is done with its rows afterwards
(``ledger.py``) or which interface called it (``writer.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import SinkFullError, WriterClosedError
from comporta.flow import Effect, Flow
from comporta.limits.wait_queue import WAITERS_MAX, Waiter, WaitForWake, WaitQueue
from comporta.pipeline.writer.buffers import BatchOptions, RowBuffer, RowKey, count_rows, group_by_buffer
from comporta.pipeline.writer.delivery import Delivery, WriterAbandonedError, call_effect
from comporta.pipeline.writer.ledger import BatchLedger, WriterHooks
from comporta.pipeline.writer.pending_failures import PendingFailures
from comporta.pipeline.writer.stats import WriterStatistics
from comporta.runtime import RUNTIME
from comporta.threads import run_cleanup

if TYPE_CHECKING:
    from comporta.pipeline.sinks.base import Row

NEW, OPENING, OPEN, CLOSING, CLOSED = "not open yet", "opening", "open", "closing", "closed"

POLL_SECONDS: Final = 1.0
"""How often a waiting caller looks by itself: an interrupt may have prevented a wake-up."""

_QUEUE_KEY: Final = "room"

Spawn = Callable[[Flow[None]], None]


class WriterCore:
    """Holds rows between the callers that write and the sink. Only its flows wait, ``try_put`` does not."""

    def __init__(
        self,
        name: str,
        options: BatchOptions,
        delivery: Delivery,
        key: RowKey | None,
        *,
        is_async: bool,
        hooks: WriterHooks,
    ) -> None:
        self.name = name
        self.options = options
        self.is_async = is_async
        self._delivery = delivery
        self._key = key
        self._lock = Lock()
        self._failures = PendingFailures()
        self._pending_failures = self._failures.pending
        self._ledger = BatchLedger(name, options.max_rows, hooks, self._lock, self._failures)
        self._buffers = [RowBuffer() for _ in range(options.threads)]
        self._wait_queue = WaitQueue()
        self._queued = self._wait_queue.waiters_by_key
        self._overtakes_left = options.capacity
        self._watchers: list[Waiter] = []
        self._state = NEW
        self._running = 0
        self._is_loop_closed: Callable[[], bool] = lambda: False
        fork_safety.register(self)

    @property
    def abandoned(self) -> bool:
        """Whether the writer was abandoned: its caller has the rows, and it starts no further batch."""
        return self._ledger.abandoned

    # -- callers that write

    def try_put(self, rows: Sequence[Row], *, is_first_waiter: bool = False) -> bool:
        """Accept all of these rows, or none if there is no room; raises an earlier failure, if there is one.

        There is room while fewer than ``capacity`` rows wait, so one call with many rows may exceed it.
        """
        groups = group_by_buffer(rows, self._buffers, self._key)
        with self._lock:
            if not self._admits(len(rows), is_first_waiter=is_first_waiter):
                return False
            max_rows, now_ns = self.options.max_rows, RUNTIME.monotonic_ns
            due = [buffer for buffer, its in groups if buffer.add(its, max_rows, now_ns)]
        for buffer in due:
            buffer.waiter.wake()
        return True

    def try_put_one(self, row: Row) -> bool:
        """Accept one row like ``try_put``: the hot path."""
        buffers, key = self._buffers, self._key
        buffer = buffers[0] if key is None else buffers[hash(key(row)) % len(buffers)]
        with self._lock:
            if self._state is not OPEN or self._pending_failures or self._queued:
                if not self._admits(1):
                    return False
            elif count_rows(buffers) >= self.options.capacity:
                return False
            is_due = buffer.add((row,), self.options.max_rows, RUNTIME.monotonic_ns)
        if is_due:
            buffer.waiter.wake()
        return True

    def _admits(self, count: int, *, is_first_waiter: bool = False) -> bool:
        """Return whether a caller may add rows now; the caller holds the lock.

        While callers wait, others are admitted if there is room, because a caller that comes at the right
        moment needs no wake-up. They overtake the waiters: at most ``capacity`` rows pass the first waiter,
        then all others queue behind it until it is served.
        """
        if self._state is not OPEN or self._pending_failures:
            self._raise_refusal()
        if count_rows(self._buffers) >= self.options.capacity:
            return False
        if is_first_waiter:
            self._overtakes_left = self.options.capacity
        elif self._queued:
            if self._overtakes_left <= 0:
                return False
            self._overtakes_left -= count
        return True

    def write_flow(self, rows: Sequence[Row]) -> Flow[None]:
        """Wait in the queue for room, then accept the rows; a caller cancelled before that wrote nothing."""
        waiter = self._wait_queue.join(_QUEUE_KEY)
        if waiter is None:
            raise SinkFullError(f"{self.name}: {WAITERS_MAX} callers wait to write already")
        try:
            while not (
                self._wait_queue.is_first(_QUEUE_KEY, waiter) and self.try_put(rows, is_first_waiter=True)
            ):
                yield WaitForWake(MONOTONIC, waiter, POLL_SECONDS)
        finally:
            run_cleanup(self._wait_queue.leave, _QUEUE_KEY, waiter)

    def flush_flow(self) -> Flow[None]:
        """Wait until all rows accepted so far have been written or are dead letters; raises a failure."""
        with self._lock:
            marks = [(buffer, buffer.request_flush()) for buffer in self._buffers]
        self._wake_buffers()
        yield from self._watch_flow(lambda: all(buffer.settled >= mark for buffer, mark in marks), None)

    # -- opening and closing

    def open_flow(self, spawn: Spawn, is_loop_closed: Callable[[], bool] | None = None) -> Flow[None]:
        """Start the buffers' flows with ``spawn`` and wait until the sink is open; raises why it is not."""
        with self._lock:
            if self._state is not NEW:
                raise WriterClosedError(
                    f"{self.name}: a writer can be opened once, and this one is {self._state}; make a new one"
                )
            self._state, self._running = OPENING, 1
            self._is_loop_closed = is_loop_closed or self._is_loop_closed
        try:
            self._start_first(spawn)
            yield from self._watch_flow(lambda: self._state is not OPENING, None)
        except BaseException:
            run_cleanup(self._cancel_open)
            raise

    def _cancel_open(self) -> None:
        with self._lock:
            if self._state in (OPENING, OPEN):
                self._state = CLOSING
        self._wake_buffers()

    def close_flow(self, timeout: float | None) -> Flow[None]:
        """Write the remaining rows and close the sink; raises what fails again, and those rows stay."""
        with self._lock:
            if self._state is NEW:
                self._state = CLOSED
            if self._state in (OPENING, OPEN):
                self._state = CLOSING
                self._failures.resume(self._buffers)
        self._wake_buffers()
        self._wait_queue.wake_first(_QUEUE_KEY)
        yield from self._watch_flow(lambda: self._state in (CLOSED, NEW), timeout)  # NEW: never opened

    def unwritten(self) -> list[Row]:
        """Return the rows that are neither written nor dead letters."""
        with self._lock:
            return [row for buffer in self._buffers for row in buffer.rows]

    def statistics(self) -> WriterStatistics:
        """Return a snapshot."""
        with self._lock:
            return WriterStatistics(
                state=self._state,
                rows_waiting=count_rows(self._buffers),
                rows_in_flight=sum(buffer.in_flight for buffer in self._buffers),
                capacity=self.options.capacity,
                writers_waiting=self._wait_queue.count(_QUEUE_KEY),
                rows_written=sum(buffer.settled for buffer in self._buffers) - self._ledger.rows_dead,
                rows_dead=self._ledger.rows_dead,
                batches_written=self._ledger.batches_written,
                retries=self._ledger.retries,
            )

    def after_fork(self) -> None:
        """Leave rows and threads to the parent process; otherwise the rows would be written twice."""
        fork_safety.reinit_lock(self._lock)
        self._buffers = [RowBuffer() for _ in self._buffers]
        self._watchers = []
        self._pending_failures.clear()
        self._running = 0
        if self._state is not NEW:
            self._state = CLOSED

    # -- the flows of the buffers

    def _start_first(self, spawn: Spawn) -> None:
        """Start the flow of the first buffer; if that fails, no flow exists that could close the writer."""
        try:
            spawn(self._first_buffer_flow(self._buffers[0], spawn))
        except Exception:
            with self._lock:
                self._state, self._running = NEW, 0
            raise

    def _first_buffer_flow(self, buffer: RowBuffer, spawn: Spawn) -> Flow[None]:
        """Open the sink, start the flows of the other buffers, then deliver batches."""
        try:
            yield from self._open_parts_flow()
        except BaseException as error:
            run_cleanup(self._record_open_failure, error)
            if isinstance(error, GeneratorExit):
                raise
            return
        self._start_others(spawn)
        with self._lock:
            self._state = OPEN if self._state is OPENING else self._state
        self._wake_watchers()
        yield from self._buffer_flow(buffer)

    def _open_parts_flow(self) -> Flow[None]:
        """Open the dead letters, then the sink; if the sink fails, close the dead letters again."""
        dead_letters = self._delivery.dead_letters
        if dead_letters is not None:
            yield call_effect(dead_letters.open)
        try:
            yield call_effect(self._delivery.sink.open, is_async=self.is_async)
        except Exception:
            if dead_letters is not None:
                yield call_effect(dead_letters.close)
            raise

    def _record_open_failure(self, error: BaseException) -> None:
        with self._lock:
            self._state, self._running = NEW, 0
            self._failures.add(error)
        self._wake_watchers()

    def _start_others(self, spawn: Spawn) -> None:
        """Start the other flows; if one cannot start, the running flows end and the sink is closed."""
        try:
            for other in self._buffers[1:]:
                with self._lock:
                    self._running += 1
                spawn(self._buffer_flow(other))
        except Exception as error:
            with self._lock:
                self._running -= 1
                self._state = CLOSING
                self._failures.add(error)
            self._wake_buffers()

    def _buffer_flow(self, buffer: RowBuffer) -> Flow[None]:
        try:
            while (yield from self._wait_due_flow(buffer)):
                error = yield from self._delivery.deliver_flow(self._ledger, buffer)
                if error is not None:
                    self._ledger.record_failure(buffer, error)
                self._wake_after_change()
        except BaseException as error:  # such as a loop that is closed: the other buffers still finish
            run_cleanup(self._record_crash, error)
            if isinstance(error, GeneratorExit):
                raise
        yield from self._end_flow()

    def _record_crash(self, error: BaseException) -> None:
        if isinstance(error, WriterAbandonedError):
            error = WriterClosedError(f"{self.name}: abandoned after its close timed out; see unwritten()")
        with self._lock:
            self._state = CLOSING
            self._failures.add(error)
        self._wake_buffers()

    def _wait_due_flow(self, buffer: RowBuffer) -> Flow[bool]:
        """Wait until a batch is due; false when the writer closes and none is left."""
        while True:
            with self._lock:
                closing = self._state is CLOSING
                wait_ns = buffer.wait_ns(RUNTIME.monotonic_ns(), self.options, flush_now=closing)
                if closing and (wait_ns is None or buffer.paused):
                    return False
            if wait_ns == 0 and not buffer.paused:
                return True
            seconds = POLL_SECONDS if wait_ns is None or buffer.paused else wait_ns / 1e9
            yield WaitForWake(MONOTONIC, buffer.waiter, min(seconds, POLL_SECONDS))

    def _end_flow(self) -> Flow[None]:
        """Close the sink, if this is the last flow to end."""
        with self._lock:
            self._running -= 1
            if self._running:
                return
        try:
            yield from self._close_part_flow(call_effect(self._delivery.sink.close, is_async=self.is_async))
            if self._delivery.dead_letters is not None:
                yield from self._close_part_flow(call_effect(self._delivery.dead_letters.close))
        finally:
            run_cleanup(self._mark_closed)

    def _mark_closed(self) -> None:
        self._state = CLOSED
        self._wake_watchers()
        self._wait_queue.wake_first(_QUEUE_KEY)

    def _close_part_flow(self, close: Effect) -> Flow[None]:
        """Close the sink or the dead letters; the caller that closes the writer gets the error."""
        try:
            yield close
        except GeneratorExit:
            raise
        except BaseException as error:
            with self._lock:
                self._failures.add(error)

    # -- waiting and waking

    def _watch_flow(self, is_over: Callable[[], bool], timeout: float | None) -> Flow[None]:
        """Wait until something is over; raises failures, and gives up after ``timeout`` seconds."""
        deadline = None if timeout is None else RUNTIME.monotonic() + timeout
        waiter = Waiter()
        self._watchers.append(waiter)
        try:
            while not is_over():
                if self._state in (OPENING, OPEN):
                    self._raise_error()
                self._check_alive()
                left = POLL_SECONDS if deadline is None else deadline - RUNTIME.monotonic()
                if left <= 0:
                    self._ledger.abandoned = True
                    raise TimeoutError(f"{self.name}: not closed within {timeout:g} s; see unwritten()")
                yield WaitForWake(MONOTONIC, waiter, min(left, POLL_SECONDS))
            self._raise_error()
        finally:
            self._watchers.remove(waiter)

    def _check_alive(self) -> None:
        if self._state is CLOSED or self._is_loop_closed():
            raise WriterClosedError(
                f"{self.name}: ended with {len(self.unwritten())} rows unwritten; see unwritten()"
            )

    def _raise_error(self) -> None:
        """Raise a failure once, if there is one; the buffer that paused for it continues."""
        with self._lock:
            if self._pending_failures:
                self._raise_refusal()

    def _raise_refusal(self) -> NoReturn:
        """Raise the reason why no row is accepted; the caller holds the lock."""
        if not self._pending_failures:
            raise WriterClosedError(
                f"{self.name}: the writer is {self._state}; write inside `async with writer`"
            )
        self._failures.raise_first()

    def _wake_after_change(self) -> None:
        """Wake callers that watch for a change, and the first waiter once half of the capacity is free.

        Waking a waiter for each batch would cost more than the rows.
        """
        self._wake_watchers()
        if self._queued and (
            self._pending_failures or 2 * count_rows(self._buffers) <= self.options.capacity
        ):
            self._wait_queue.wake_first(_QUEUE_KEY)

    def _wake_buffers(self) -> None:
        for buffer in self._buffers:
            buffer.waiter.wake()

    def _wake_watchers(self) -> None:
        for waiter in list(self._watchers):
            waiter.wake()
