"""One batch on its way to the sink: the limiter, the retries, and dead letters for rows that fail for good.

A delivery is a flow, so the same code writes to a blocking sink on a thread and to an asynchronous one on an
event loop. It knows nothing about buffers and locks: it reports to a :class:`BatchLedger`, which keeps the
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from comporta.errors import LimitReachedError, SinkRowError
from comporta.flow import Flow, Perform
from comporta.retry.retry import FailedAttempt, Retry
from comporta.runtime import RUNTIME
from comporta.thread_pool import run_in_thread

if TYPE_CHECKING:
    from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
    from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
    from comporta.pipeline.writer.buffers import RowBuffer
    from comporta.pipeline.writer.ledger import BatchLedger

    DeadLetterOf = Callable[[Row, str, int], DeadLetter]
    """Returns the dead letter for a row, the reason and the number of attempts."""


class WriteLimiter(Protocol):
    """Any limiter of comporta: each attempt to write a batch acquires one unit from it."""

    @property
    def sync(self) -> Any:
        """The blocking interface of the limiter."""

    async def acquire(self, *, timeout: float | None) -> bool:
        """Wait for one unit."""


class WriterAbandonedError(BaseException):
    """The writer was abandoned while this batch waited: its rows belong to the caller now."""


class RowFailed(FailedAttempt):
    """A failure that no retry can fix: a row is at fault."""

    __slots__ = ()

    is_final = True


class WriteAttempt:
    """Effect: write a batch once and return the failure, if any.

    The batch is taken from its buffer when the limiter grants the first attempt, so rows that arrive during
    the wait are included.
    """

    __slots__ = ("_buffer", "_delivery", "_ledger", "_rows", "attempts")

    def __init__(self, delivery: Delivery, ledger: BatchLedger, buffer: RowBuffer) -> None:
        self._delivery = delivery
        self._ledger = ledger
        self._buffer = buffer
        self._rows: list[Row] | None = None
        self.attempts = 0

    @property
    def rows(self) -> list[Row]:
        """The batch."""
        if self._rows is None:
            self._rows = self._ledger.take(self._buffer)
        return self._rows

    def block(self) -> FailedAttempt | None:
        """Write it on this thread."""
        delivery = self._delivery
        self._count()
        try:
            if delivery.limiter is not None:
                _require_grant(delivery.limiter.sync.acquire(timeout=None))
                self._check_abandoned()
            delivery.sink.write(self.rows)
        except Exception as error:
            return _write_failure(error)
        return None

    async def wait(self) -> FailedAttempt | None:
        """Write it on this event loop."""
        delivery = self._delivery
        self._count()
        try:
            if delivery.limiter is not None:
                _require_grant(await delivery.limiter.acquire(timeout=None))
                self._check_abandoned()
            await delivery.sink.write(self.rows)  # type: ignore[misc]  # an asynchronous sink
        except Exception as error:
            return _write_failure(error)
        return None

    def _count(self) -> None:
        self._check_abandoned()
        self.attempts += 1
        if self.attempts > 1:
            self._ledger.count_retry()

    def _check_abandoned(self) -> None:
        if self._ledger.abandoned:
            raise WriterAbandonedError


class Delivery:
    """Writes batches to a sink, with retries and a limiter; rows that fail for good go to dead letters."""

    def __init__(
        self,
        sink: Sink | AsyncSink,
        *,
        retry: Retry | None,
        limiter: WriteLimiter | None,
        dead_letters: DeadLetters | None,
        dead_letter_of: DeadLetterOf,
    ) -> None:
        self.sink = sink
        self.retry = retry
        self.limiter = limiter
        self.dead_letters = dead_letters
        self._dead_letter_of = dead_letter_of

    def deliver_flow(self, ledger: BatchLedger, buffer: RowBuffer) -> Flow[Exception | None]:
        """Write the next batch of a buffer; returns the error if its rows stay there."""
        attempt = WriteAttempt(self, ledger, buffer)
        began_ns = RUNTIME.monotonic_ns()
        failed = yield from self._attempt_flow(attempt)
        if failed is None:
            ledger.record_written(buffer, attempt.rows, (RUNTIME.monotonic_ns() - began_ns) / 1e9)
            return None
        error = failed.error
        if self.dead_letters is None:
            return error
        index = _faulty_index(error, attempt.rows)
        dead = attempt.rows if index is None else [attempt.rows[index]]
        try:
            yield call_effect(self._dead_letter_call(self.dead_letters, dead, error, attempt.attempts))
        except Exception as dead_letter_error:  # for example a full file: no more rows may be given up
            dead_letter_error.__cause__ = error
            return dead_letter_error
        ledger.record_dead(buffer, dead, index, error)
        return None

    def _attempt_flow(self, attempt: WriteAttempt) -> Flow[FailedAttempt | None]:
        retry = self.retry
        if retry is None:
            failed: FailedAttempt | None = yield attempt
        else:
            retry._count_call()
            failed = yield from retry._call_flow(attempt, retry.clock.now_ns())
        return failed

    def _dead_letter_call(
        self, dead_letters: DeadLetters, rows: Sequence[Row], error: Exception, attempts: int
    ) -> Callable[[], None]:
        reason = f"{type(error).__name__}: {error}"
        return lambda: dead_letters.extend([self._dead_letter_of(row, reason, attempts) for row in rows])


def call_effect(function: Callable[[], Any], *, is_async: bool = False) -> Perform:
    """Return the effect that calls a function; on an event loop, a blocking function gets its own thread."""
    return Perform(function, function if is_async else partial(run_in_thread, function))


def _require_grant(granted: bool) -> None:
    if not granted:
        text = "the limiter of this writer refused a batch: too many callers wait for it already"
        raise LimitReachedError(text, "writer", 1.0)


def _write_failure(error: Exception) -> FailedAttempt:
    return RowFailed(error) if isinstance(error, SinkRowError) else FailedAttempt(error)


def _faulty_index(error: Exception, rows: Sequence[Row]) -> int | None:
    """Return which row of the batch is at fault, if the error names one."""
    if isinstance(error, SinkRowError) and 0 <= error.index < len(rows):
        return error.index
    return None
