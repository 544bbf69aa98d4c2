"""One batch on its way to the sink: the quota, the tries, and what becomes of rows nobody wants.

A flow, so that a blocking sink is written on a thread and an awaited one on an event loop by the same text.
It knows no lanes: what is settled is told to the ``Ledger``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from comporta.errors import LimitReachedError, SinkRowError
from comporta.flow import Flow
from comporta.pipeline.waits import Call
from comporta.retry.retry import Failed, Retry

if TYPE_CHECKING:
    from comporta.pipeline.lanes import Key
    from comporta.pipeline.letters import DeadLetters
    from comporta.pipeline.sinks.base import AsyncSink, Row, Sink


class Quota(Protocol):
    """What a flush takes one of: any limiter of comporta's."""

    @property
    def sync(self) -> Any:
        """The same, blocking."""

    async def acquire(self, *, timeout: float | None) -> bool:
        """Wait for one."""


class Ledger(Protocol):
    """Who keeps the rows of a batch until they are settled."""

    @property
    def abandoned(self) -> bool:
        """Whether somebody else has the rows by now, and none may be written any more."""

    def take(self) -> list[Row]:
        """Return the rows that are next; they stay where they are until they are settled."""

    def written(self, rows: Sequence[Row], seconds: float) -> None:
        """All of the batch is kept by the sink."""

    def buried(self, rows: Sequence[Row], index: int | None, error: Exception) -> None:
        """All of the batch (or one row of it) is in dead letters."""

    def tried_again(self) -> None:
        """A try failed and there is another."""


class AbandonedError(BaseException):
    """The writer was given up while this batch waited: its rows are in somebody else's hands."""


class Unfit(Failed):
    """A failure that no further try mends: a row is at fault."""

    __slots__ = ()


class Try:
    """Effect: write a batch once; a failure is an answer.

    What the batch holds is settled when the quota allows the first try: rows that came meanwhile go along.
    """

    __slots__ = ("_delivery", "_ledger", "_rows", "attempts")

    def __init__(self, delivery: Delivery, ledger: Ledger) -> None:
        self._delivery = delivery
        self._ledger = ledger
        self._rows: list[Row] | None = None
        self.attempts = 0

    @property
    def rows(self) -> list[Row]:
        """The batch."""
        if self._rows is None:
            self._rows = self._ledger.take()
        return self._rows

    def block(self) -> Failed | None:
        """Write it on this thread."""
        delivery = self._delivery
        self._begin()
        try:
            if delivery.limiter is not None:
                _granted(delivery.limiter.sync.acquire(timeout=None))
                self._check()
            delivery.sink.write(self.rows)
        except Exception as error:
            return _failed(error)
        return None

    async def wait(self) -> Failed | None:
        """Await it."""
        delivery = self._delivery
        self._begin()
        try:
            if delivery.limiter is not None:
                _granted(await delivery.limiter.acquire(timeout=None))
                self._check()
            await delivery.sink.write(self.rows)  # type: ignore[misc]  # this one is awaited
        except Exception as error:
            return _failed(error)
        return None

    def _begin(self) -> None:
        self._check()
        self.attempts += 1
        if self.attempts > 1:
            self._ledger.tried_again()

    def _check(self) -> None:
        if self._ledger.abandoned:
            raise AbandonedError


class Delivery:
    """How batches are written: where to, how often to try, within which quota, and where they end if not."""

    def __init__(
        self,
        sink: Sink | AsyncSink,
        *,
        retry: Retry | None,
        limiter: Quota | None,
        letters: DeadLetters | None,
        key: Key | None,
    ) -> None:
        self.sink = sink
        self.retry = retry
        self.limiter = limiter
        self.letters = letters
        self._key = key

    def delivering(self, ledger: Ledger) -> Flow[Exception | None]:
        """Write a batch; returns why it is left where it was, if it is."""
        attempt = Try(self, ledger)
        began_ns = monotonic_ns()
        failed = yield from self._trying(attempt)
        if failed is None:
            ledger.written(attempt.rows, (monotonic_ns() - began_ns) / 1e9)
            return None
        error = failed.error
        if self.letters is None:
            return error
        index = _at_fault(error, attempt.rows)
        dead = attempt.rows if index is None else [attempt.rows[index]]
        try:
            yield Call(self._burying(self.letters, dead, error, attempt.attempts))
        except Exception as trouble:  # the letters are full: nothing more may be given up
            trouble.__cause__ = error
            return trouble
        ledger.buried(dead, index, error)
        return None

    def _trying(self, attempt: Try) -> Flow[Failed | None]:
        retry = self.retry
        if retry is not None and retry.budget is not None:
            retry.budget.called()
        began_ns = 0 if retry is None else retry.clock.now_ns()
        failed: Failed | None = yield attempt
        if retry is not None and type(failed) is Failed:
            failed = yield from retry.retrying(attempt, failed, began_ns)
        return failed

    def _burying(
        self, letters: DeadLetters, rows: Sequence[Row], error: Exception, attempts: int
    ) -> Callable[[], None]:
        from comporta.pipeline.letters import Letter  # noqa: PLC0415 - brings in json and files

        reason = f"{type(error).__name__}: {error}"
        key = self._key or (lambda row: None)
        return lambda: letters.extend([Letter(dict(row), reason, attempts, key(row)) for row in rows])


def _granted(granted: bool) -> None:
    if not granted:
        raise LimitReachedError("too many wait for the limit of this writer already", "writer", 1.0)


def _failed(error: Exception) -> Failed:
    return Unfit(error) if isinstance(error, SinkRowError) else Failed(error)


def _at_fault(error: Exception, rows: Sequence[Row]) -> int | None:
    """Return which row it is that cannot be kept, if one is to blame."""
    if isinstance(error, SinkRowError) and 0 <= error.index < len(rows):
        return error.index
    return None
