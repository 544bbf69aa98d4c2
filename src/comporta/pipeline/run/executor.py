"""What happens to one item: its step, with retries, then its rows, a dead letter or nothing.

This module does not know where items come from, or how rows reach the sink.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comporta.errors import SourceError
from comporta.pipeline.run.item_log import ItemLog
from comporta.pipeline.run.output import PipelineOutput
from comporta.pipeline.run.report import Report
from comporta.pipeline.run.sources import SourceEntry
from comporta.retry.retry import Attempt, FailedAttempt
from comporta.runtime import RUNTIME
from comporta.signatures import is_async_callable
from comporta.thread_pool import ThreadPool

if TYPE_CHECKING:
    from asyncio import Future

    from comporta.pipeline.run.pipeline import Pipeline
    from comporta.pipeline.sinks.base import Row

Unfinished = tuple[SourceEntry, Any]
"""An item that a thread has executed, and what its step returned."""

BURST_SECONDS = 0.001
"""A thread starts further items only within this time, because the event loop finishes some of them."""

ROWS_MAX = 10_000
"""How many rows a step may return for one item: they are written in one batch."""


STEP_ATTEMPTS = "step_attempts"
"""A step that retries by itself sets this attribute on the error that it raises, for the dead letter."""


class StepExecutor:
    """Executes the steps of one run."""

    def __init__(
        self, pipeline: Pipeline, report: Report, progress_log: ItemLog, output: PipelineOutput | None
    ) -> None:
        self._pipeline = pipeline
        self._report = report
        self._progress_log = progress_log
        self._output = output
        self._pool = ThreadPool("step", pipeline.workers, calls_max=2 * pipeline.workers)
        self._step: Callable[[Any], Awaitable[Any]] = self._call_on_thread
        is_async = is_async_callable(pipeline.step)
        if is_async:
            self._step = pipeline.step  # type: ignore[assignment]  # checked just now
        self.runs_bursts = not is_async and pipeline.retry is None and pipeline.key is None

    def with_key(self, entry: SourceEntry) -> tuple[SourceEntry, Hashable]:
        """Return an entry and its key; one whose key cannot be computed gets an error and a unique key."""
        if entry.error or self._pipeline.key is None:
            return entry, object()
        try:
            key = self._pipeline.key(entry.item)
            hash(key)
        except Exception as error:
            return entry._replace(error=f"{entry.name()} has no key: {_error_text(error)}"), object()
        return entry, key

    async def execute(self, entry: SourceEntry, key: Hashable) -> None:
        """Execute the step of one item; the item is done when this returns, or when its rows are written."""
        if entry.error:
            await self._give_up(entry, entry.error)
            return
        retry, attempts = self._pipeline.retry, 1
        try:
            if retry is None:
                result = await self._step(entry.item)
            else:
                step = _CountedStep(self._step, entry.item)
                try:
                    result = await retry.call(step)
                finally:
                    attempts = step.attempts
                    self._report.retries += max(0, attempts - 1)
        except Exception as error:
            await self._give_up(entry, _error_text(error), _attempts_of(error, attempts), key, error)
            return
        await self._accept(entry, result)

    def start_burst(
        self, first: SourceEntry, take_next: Callable[[], SourceEntry | None], on_begin: Callable[[], None]
    ) -> Future[list[Unfinished]]:
        """Execute a blocking step on a thread: for one item, and if the step is fast, for the next ones, too.

        A call on a thread costs more than a fast step. The thread itself writes the rows as long as the sink
        is not behind. It calls ``on_begin`` when it begins, and ``take_next`` for another item. Pass the
        result to ``finish_burst``.
        """
        return self._pool.submit(lambda: self._run_burst(first, take_next, on_begin))

    async def finish_burst(self, unfinished: list[Unfinished]) -> None:
        """Finish the items that a thread left: those without rows, a failed one, or one that has to wait."""
        for entry, outcome in unfinished:
            if entry.error:
                await self._give_up(entry, entry.error)
            elif type(outcome) is FailedAttempt:
                await self._give_up(entry, _error_text(outcome.error), 1, None, outcome.error)
            else:
                await self._accept(entry, outcome)

    def _run_burst(
        self, first: SourceEntry, take_next: Callable[[], SourceEntry | None], on_begin: Callable[[], None]
    ) -> list[Unfinished]:
        """Run the step for up to :data:`BURST_SECONDS`; return what the event loop has to finish."""
        on_begin()
        step, output = self._pipeline.step, self._output
        until = RUNTIME.monotonic() + BURST_SECONDS
        unfinished: list[Unfinished] = []
        entry: SourceEntry | None = first
        while entry is not None:
            outcome = None if entry.error else Attempt(step, (entry.item,), {}).block()
            if type(outcome) is not dict or output is None or not output.try_write(entry, (outcome,)):
                unfinished.append((entry, outcome))
                if type(outcome) is FailedAttempt or (outcome is not None and output is not None):
                    break
            entry = take_next() if RUNTIME.monotonic() < until else None
        return unfinished

    async def _accept(self, entry: SourceEntry, result: Any) -> None:
        """Write the rows that a step returned, or confirm the item if there are none."""
        output = self._output
        rows = () if output is None else (result,) if type(result) is dict else _rows_of(result)
        if output is None or not rows:
            self._progress_log.confirm([entry.position])
        elif not output.try_write(entry, rows):
            await output.write(entry, rows)

    def close(self) -> None:
        """End the threads, without waiting for a step that hangs."""
        self._pool.close()

    async def _give_up(
        self,
        entry: SourceEntry,
        reason: str,
        attempts: int = 0,
        key: Hashable = None,
        error: Exception | None = None,
    ) -> None:
        if not self._progress_log.accepts_dead_letters:
            raise terminal_error(entry, reason, error, key)
        dead_letter = self._progress_log.dead_letter_of(entry, reason, attempts, key)
        await self._progress_log.record_dead_letter(entry, dead_letter)

    async def _call_on_thread(self, item: Any) -> Any:
        attempt = Attempt(self._pipeline.step, (item,), {})
        outcome = await self._pool.submit(attempt.block)
        if type(outcome) is FailedAttempt:
            outcome.raise_error()
        return outcome


class _CountedStep:
    """The step of one item; counts its attempts."""

    __slots__ = ("_item", "_step", "attempts")

    def __init__(self, step: Callable[[Any], Awaitable[Any]], item: Any) -> None:
        self._step = step
        self._item = item
        self.attempts = 0

    async def __call__(self) -> Any:
        self.attempts += 1
        return await self._step(self._item)


def terminal_error(
    entry: SourceEntry, reason: str, error: Exception | None, key: Hashable = None
) -> Exception:
    """Return the error that ends a run without dead letters: the step's error with a note on the item."""
    if error is None:
        return SourceError(reason)
    error.add_note(f"Raised for {entry.name(key)}; set dead_letters to continue without such items.")
    return error


def _rows_of(result: Any) -> Sequence[Row]:
    """Return the rows that a step returned: none, one or several."""
    if result is None:
        return ()
    if isinstance(result, Mapping):
        return (result,)
    if not isinstance(result, list | tuple) or not all(isinstance(row, Mapping) for row in result):
        raise TypeError(f"step must return a mapping (a row), a list of them or None, got {result!r:.100}")
    if len(result) > ROWS_MAX:
        raise ValueError(f"step must return at most {ROWS_MAX} rows for an item, got {len(result)}")
    return result


def _attempts_of(error: Exception, counted: int) -> int:
    """Return the attempts that a step with its own retries recorded in its error, or those counted here."""
    return int(getattr(error, STEP_ATTEMPTS, counted))


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
