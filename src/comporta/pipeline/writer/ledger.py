"""The outcome of each batch: counts rows that were written or became dead letters, and calls users' hooks.

A delivery (``delivery.py``) reports to the ledger. Rows leave their buffer only here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from comporta.events import publish
from comporta.pipeline.writer.pending_failures import PendingFailures
from comporta.pipeline.writer.stats import count_dead, count_written

if TYPE_CHECKING:
    from comporta.pipeline.sinks.base import Row
    from comporta.pipeline.writer.buffers import RowBuffer

OnWritten = Callable[[Sequence["Row"]], object]
OnDead = Callable[[Sequence["Row"], Exception], object]
OnError = Callable[[Exception], object]


class WriterHooks(NamedTuple):
    """The functions of the user that a writer calls."""

    on_written: OnWritten | None
    on_dead: OnDead | None
    on_error: OnError | None = None


class BatchLedger:
    """Keeps the rows of each buffer until they are settled, and counts them.

    ``lock`` and ``failures`` are those of the writer. If a writer is ``abandoned``, its caller has the rows,
    and none of them may be written any more.
    """

    def __init__(
        self, name: str, max_rows: int, hooks: WriterHooks, lock: Lock, failures: PendingFailures
    ) -> None:
        self.abandoned = False
        self.batches_written = self.retries = self.rows_dead = 0
        self._name = name
        self._max_rows = max_rows
        self._hooks = hooks
        self._lock = lock
        self._failures = failures

    def take(self, buffer: RowBuffer) -> list[Row]:
        """Return the next batch of a buffer; its rows stay there until they are settled."""
        with self._lock:
            return buffer.take(self._max_rows)

    def record_written(self, buffer: RowBuffer, rows: Sequence[Row], seconds: float) -> None:
        """Settle a batch that the sink has accepted."""
        self._call_hook(self._hooks.on_written, rows)
        with self._lock:
            buffer.settle(len(rows))
            self.batches_written += 1
        count_written(self._name, len(rows), seconds)

    def record_dead(
        self, buffer: RowBuffer, rows: Sequence[Row], index: int | None, error: Exception
    ) -> None:
        """Settle rows that are dead letters: the whole batch, or the one at ``index``."""
        on_dead = self._hooks.on_dead
        self._call_hook(None if on_dead is None else lambda dead: on_dead(dead, error), rows)
        with self._lock:
            self.rows_dead += len(rows)
            buffer.settle(len(rows)) if index is None else buffer.settle_one(index)
        publish("writer_dead_letters", self._name, f"{len(rows)} rows: {type(error).__name__}: {error}")
        count_dead(self._name, len(rows))

    def record_failure(self, buffer: RowBuffer, error: Exception) -> None:
        """Keep the rows and start no batch of this buffer until a caller has received the error."""
        with self._lock:
            self._failures.pause(buffer, error)
        waiting = f"{len(buffer.rows)} rows wait for the next write, flush or close to try again"
        publish("writer_failed", self._name, f"{type(error).__name__}: {error}; {waiting}", "error")
        on_error = self._hooks.on_error
        self._call_hook(None if on_error is None else lambda _: on_error(error), ())

    def count_retry(self) -> None:
        """Count an attempt after a failed one."""
        self.retries += 1

    def _call_hook(self, hook: Callable[[Sequence[Row]], object] | None, rows: Sequence[Row]) -> None:
        """Call a hook; the rows are settled even if it raises, and the next caller gets its error."""
        try:
            if hook is not None:
                hook(rows)
        except BaseException as error:  # even SystemExit: the sink has the rows already
            with self._lock:
                self._failures.add_once(error)
            publish("writer_failed", self._name, f"a hook failed: {type(error).__name__}: {error}", "error")
