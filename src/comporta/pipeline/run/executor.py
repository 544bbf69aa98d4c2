"""What happens to one item: its step, with retries, then a row, a dead letter or nothing.

It does not know where items come from, or how rows reach the sink.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from comporta.errors import SourceError
from comporta.pipeline.dead_letters import DeadLetter
from comporta.pipeline.run.output import PipelineOutput
from comporta.pipeline.run.progress_log import ProgressLog
from comporta.pipeline.run.report import Report
from comporta.pipeline.run.sources import SourceEntry
from comporta.retry.retry import Attempt, FailedAttempt
from comporta.signatures import is_async_callable
from comporta.thread_pool import ThreadPool

if TYPE_CHECKING:
    from comporta.pipeline.run.pipeline import Pipeline


class StepExecutor:
    """Executes the steps of one run."""

    def __init__(
        self, pipeline: Pipeline, report: Report, progress_log: ProgressLog, output: PipelineOutput | None
    ) -> None:
        self._pipeline = pipeline
        self._report = report
        self._progress_log = progress_log
        self._output = output
        self._pool = ThreadPool("step", pipeline.workers, calls_max=2 * pipeline.workers)
        self._step: Callable[[Any], Awaitable[Any]] = self._call_on_thread
        if is_async_callable(pipeline.step):
            self._step = pipeline.step  # type: ignore[assignment]  # checked just now

    def with_key(self, entry: SourceEntry) -> tuple[SourceEntry, Hashable]:
        """Return an entry and its key; one whose key cannot be computed gets an error and a unique key."""
        if entry.error or self._pipeline.key is None:
            return entry, object()
        try:
            key = self._pipeline.key(entry.item)
            hash(key)
        except Exception as error:
            return entry._replace(error=f"item {entry.number} has no key: {_error_text(error)}"), object()
        return entry, key

    async def execute(self, entry: SourceEntry, key: Hashable) -> None:
        """Execute the step of one item; the item is done when this returns, or when its row is written."""
        if entry.error:
            await self._give_up(entry, entry.error)
            return
        step = _CountedStep(self._step, entry.item)
        try:
            if self._pipeline.retry is None:
                row = await step()
            else:
                row = await self._pipeline.retry.call(step)
        except Exception as error:
            self._report.retries += max(0, step.attempts - 1)
            await self._give_up(entry, _error_text(error), step.attempts, key, error)
            return
        self._report.retries += step.attempts - 1
        await self._write_row(entry, row)

    def close(self) -> None:
        """End the threads, without waiting for a step that hangs."""
        self._pool.close()

    async def _write_row(self, entry: SourceEntry, row: Any) -> None:
        if row is None or self._output is None:
            self._progress_log.confirm([entry.position])
            return
        if not isinstance(row, Mapping):
            raise TypeError(f"step must return a mapping (a row) or None, got {row!r:.100}")
        await self._output.write(entry, row)

    async def _give_up(
        self,
        entry: SourceEntry,
        reason: str,
        attempts: int = 0,
        key: Hashable = None,
        error: Exception | None = None,
    ) -> None:
        if self._progress_log.dead_letters is None:
            raise terminal_error(entry, reason, error)
        dead_letter = DeadLetter(entry.item, reason, attempts, key, entry.number)
        await self._progress_log.record_dead_letter(entry.position, dead_letter)

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


def terminal_error(entry: SourceEntry, reason: str, error: Exception | None) -> Exception:
    """Return the error that ends a run without dead letters: the step's error with a note on the item."""
    if error is None:
        return SourceError(reason)
    error.add_note(f"Raised for item {entry.number}; set dead_letters to continue without such items.")
    return error


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
