"""One run of a pipeline: opens everything, reads, executes steps, reports progress and shuts down.

All tasks report their end to one method; the first error stops all of them, and the run raises it. An item
is *done* when its row is in the sink, when it is a dead letter, or when its step returned no row. Only then
is it confirmed; otherwise the next run reads it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Hashable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from comporta import events
from comporta.errors import ChannelClosedError, PipelineError
from comporta.pipeline.channel import Channel
from comporta.pipeline.dead_letters import DeadLetters
from comporta.pipeline.run.checkpoint import Checkpoint
from comporta.pipeline.run.executor import StepExecutor
from comporta.pipeline.run.item_log import ItemLog
from comporta.pipeline.run.output import PipelineOutput
from comporta.pipeline.run.per_key_order import KeyOrder
from comporta.pipeline.run.progress import Progress, progress_display, show_nothing
from comporta.pipeline.run.progress_log import ProgressLog
from comporta.pipeline.run.reader import CHUNK_ENTRIES_MAX, EntryReader, source_identity
from comporta.pipeline.run.report import COMPLETE, DRAINED, STOPPED, Report
from comporta.pipeline.run.signals import SignalHandlers
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.shared_run.progress_log import SharedProgressLog
from comporta.pipeline.shared_run.source import TableSource
from comporta.runtime import RUNTIME
from comporta.threads import run_cleanup

if TYPE_CHECKING:
    from comporta.pipeline.run.pipeline import Pipeline

STOP_SECONDS = 5.0
"""How long a stopped run waits for its sink to accept the rows of finished steps."""

SHOW_SECONDS = 0.25
EVENT_SECONDS = 60.0
"""How often progress is published as an event."""

_Task = asyncio.Task[None]


class PipelineRun:
    """One run, from open to shutdown."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.report = Report(pipeline.name)
        self._progress_log = _item_log_of(pipeline, self.report)
        self._output: PipelineOutput | None = None
        self._executor: StepExecutor | None = None
        self._reader: EntryReader | None = None
        self._channel: Channel[tuple[SourceEntry, Hashable]] = Channel(pipeline.capacity)
        self._window = pipeline.window
        self._key_order: KeyOrder[SourceEntry] = KeyOrder()
        self._backlog_shrank = asyncio.Event()
        self._burst_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._feeder: _Task | None = None
        self._main_tasks: set[_Task] = set()
        self._background_tasks: set[_Task] = set()
        self._error: BaseException | None = None
        self._end_state = COMPLETE
        self._skips_unstarted = False
        self._stop_requested = asyncio.Event()
        self._started_at = RUNTIME.monotonic()

    async def execute(self, *, signals: bool) -> Report:
        """Run to the end and return the report."""
        with SignalHandlers(self.drain, self.stop, enabled=signals):
            await self._await_and_keep_error(self._open_and_work())
            await self._shut_down()
        self.report.seconds = RUNTIME.monotonic() - self._started_at
        if self._error is not None:
            raise self._error
        self.report.ended = self._end_state
        self._publish("pipeline_ended", f"{self._end_state}: {self.report}")
        return self.report

    def drain(self) -> None:
        """Start no more items. Items that can be read again stay in the source; others are finished."""
        if self._end_state != COMPLETE:
            return
        self._end_state = DRAINED
        self.report.draining = True
        self._publish("pipeline_draining", f"starts no more items: {self.report}")
        if self._reader is not None:
            self._reader.stop()
            self._skips_unstarted = self._reader.rereadable or self._pipeline.checkpoint is not None
        if self._feeder is not None and self._skips_unstarted:
            self._feeder.cancel()

    def stop(self) -> None:
        """Stop now."""
        self._end_state = STOPPED
        self._stop_requested.set()
        for task in self._main_tasks:
            task.cancel()

    # -- open and start

    async def _open_and_work(self) -> None:
        opening = self._start_tasks([self._open()], self._main_tasks)  # a task, so that stop cancels it
        await asyncio.wait(opening)
        if self._end_state == COMPLETE:  # neither drained nor stopped meanwhile
            [self._feeder] = self._start_tasks([self._feed()], self._main_tasks)
            self._start_tasks([self._work() for _ in range(self._pipeline.workers)], self._main_tasks)
            self._start_tasks(
                [*self._progress_log.background_jobs(), self._report_progress()], self._background_tasks
            )
            await asyncio.wait(self._main_tasks)

    async def _open(self) -> None:
        pipeline = self._pipeline
        identity = {} if pipeline.checkpoint is None else await source_identity(pipeline.source)
        await self._progress_log.open(identity)
        if pipeline.sink is not None:
            output = PipelineOutput(pipeline, pipeline.sink, self._progress_log)
            await output.open()
            self._output = output
            self._window = max(self._window, 2 * pipeline.max_rows)  # otherwise no batch would ever be full
        self._executor = StepExecutor(pipeline, self.report, self._progress_log, self._output)
        self._reader = await self._progress_log.open_reader(pipeline.source, pipeline.capacity)
        self.report.total = self._reader.total

    def _start_tasks(self, jobs: list[Coroutine[Any, Any, None]], group: set[_Task]) -> list[_Task]:
        tasks = [asyncio.create_task(job) for job in jobs]
        group.update(tasks)
        for task in tasks:
            task.add_done_callback(self._on_task_done)
        return tasks

    def _on_task_done(self, task: _Task) -> None:
        """Check why a task ended: an error, or a cancellation from outside the run, stops the run."""
        if task.cancelled():
            if self._end_state != STOPPED and task in self._main_tasks:
                self._fail(PipelineError(f"{self._pipeline.name}: a step was cancelled from outside"))
        elif (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    # -- reading

    async def _feed(self) -> None:
        """Send entries to the executing tasks, as there is room."""
        assert self._reader is not None  # noqa: S101 - set by _open
        size = min(CHUNK_ENTRIES_MAX, self._pipeline.capacity)
        try:
            async for chunk in self._reader:
                for first in range(0, len(chunk), size):
                    await self._dispatch(chunk[first : first + size])
        except asyncio.CancelledError:
            if not self._skips_unstarted:
                raise
        finally:
            run_cleanup(self._channel.close)

    async def _dispatch(self, entries: list[SourceEntry]) -> None:
        fresh = [entry for entry in entries if not self._progress_log.is_done(entry.position)]
        self.report.skipped += len(entries) - len(fresh)
        if not fresh:
            await asyncio.sleep(0)  # otherwise a long file of done items would block the loop
            return
        await self._progress_log.wait_for_window(entries[-1].position, self._window)
        if self._pipeline.key is None:
            await self._channel.send_many([(entry, None) for entry in fresh])
        else:
            await self._dispatch_by_key(fresh)

    async def _dispatch_by_key(self, entries: list[SourceEntry]) -> None:
        assert self._executor is not None  # noqa: S101 - set by _open
        while self._key_order.waiting >= self._pipeline.capacity:
            self._backlog_shrank.clear()
            await self._backlog_shrank.wait()
        keyed = [self._executor.with_key(entry) for entry in entries]
        await self._channel.send_many(
            [(entry, key) for entry, key in keyed if self._key_order.try_start(key, entry)]
        )

    # -- executing

    async def _work(self) -> None:
        assert self._executor is not None  # noqa: S101 - set by _open
        if self._executor.runs_bursts:
            await self._execute_bursts(self._executor)
        else:
            await self._execute_entries(self._executor)

    async def _execute_bursts(self, executor: StepExecutor) -> None:
        """Execute items on a thread, several at a time if they are fast.

        One task at a time takes an item and waits until its thread begins. Otherwise all tasks would take an
        item each before the first thread, which may be fast enough for all of them, could take the second.
        """
        while True:
            begun = asyncio.Event()
            async with self._burst_lock:
                try:
                    first, _ = await self._channel.receive()
                except ChannelClosedError:
                    return
                if self._skips_unstarted:
                    continue
                burst = executor.start_burst(first, self._take_next, partial(self._set_from_thread, begun))
                await begun.wait()
            await executor.finish_burst(await burst)

    def _take_next(self) -> SourceEntry | None:
        """Return the next item for a thread that can continue, if there is one; threads call this."""
        if self._skips_unstarted or self._stop_requested.is_set():
            return None
        taken = self._channel._take(1)
        return taken[0][0] if taken else None

    def _set_from_thread(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the event loop was closed
            self._loop.call_soon_threadsafe(event.set)

    async def _execute_entries(self, executor: StepExecutor) -> None:
        has_key = self._pipeline.key is not None
        execute, receive = executor.execute, self._channel.receive
        while True:
            entry: SourceEntry | None
            try:
                entry, key = await receive()
            except ChannelClosedError:
                return
            while entry is not None:
                if not self._skips_unstarted:
                    await execute(entry, key)
                entry = self._next_of_key(key) if has_key else None

    def _next_of_key(self, key: Hashable) -> SourceEntry | None:
        self._backlog_shrank.set()
        return self._key_order.finish(key)

    # -- progress

    async def _report_progress(self) -> None:
        """Show and publish progress, until cancelled."""
        next_event_at = self._started_at + EVENT_SECONDS
        with progress_display(self._pipeline.progress) as display:
            show = display
            try:
                while True:
                    now = RUNTIME.monotonic()
                    self.report.seconds = now - self._started_at
                    show = self._try_show(show)
                    if now >= next_event_at:
                        next_event_at = now + EVENT_SECONDS
                        self._publish("pipeline_progress", str(self.report))
                    await asyncio.sleep(SHOW_SECONDS)
            finally:
                self._show_last(show)

    def _show_last(self, show: Progress) -> None:
        """Show the final numbers; a complete run has processed all items, however many were expected."""
        if self._end_state == COMPLETE and self._error is None:
            self.report.total = self.report.skipped + self.report.done
            self.report.ended = COMPLETE
        self._try_show(show)

    def _try_show(self, show: Progress) -> Progress:
        """Show progress; if that fails, as on a closed terminal, show none for the rest of the run."""
        try:
            show(self.report)
        except Exception as error:
            self._publish(
                "pipeline_progress", f"progress is no longer shown: {type(error).__name__}: {error}"
            )
            return show_nothing
        return show

    def _publish(self, kind: str, text: str) -> None:
        events.publish(kind, self._pipeline.name, text, "info")

    # -- shutdown

    async def _shut_down(self) -> None:
        """Close everything, even if a part fails; save the checkpoint last."""
        if self._reader is not None:
            self._reader.stop()
        await self._await_and_keep_error(_cancel_and_wait(self._main_tasks))
        if self._reader is not None:
            self._reader.close()
        if self._executor is not None:
            self._executor.close()
        if self._output is not None:
            await self._await_and_keep_error(self._close_output(self._output))
        await self._await_and_keep_error(_cancel_and_wait(self._background_tasks))
        complete, failed = self._end_state == COMPLETE, self._error is not None
        await self._await_and_keep_error(self._progress_log.close(complete=complete, failed=failed))

    async def _close_output(self, output: PipelineOutput) -> None:
        """Write the remaining rows, without a time limit unless the run is stopped."""
        closing = asyncio.create_task(output.close(None))
        stopping = asyncio.ensure_future(self._stop_requested.wait())
        try:
            await asyncio.wait((closing, stopping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            self._fail(error)
        stopping.cancel()
        if closing.done():
            closing.result()
            return
        await _cancel_and_wait({closing})
        await output.close(STOP_SECONDS)

    async def _await_and_keep_error(self, work: Awaitable[None]) -> None:
        """Await ``work`` and keep its error for the end of the run; the first error counts."""
        try:
            await work
        except BaseException as error:
            self._fail(error)


async def _cancel_and_wait(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _item_log_of(pipeline: Pipeline, report: Report) -> ItemLog:
    if isinstance(pipeline.source, TableSource):
        return SharedProgressLog(report, pipeline, pipeline.source)
    return ProgressLog(report, _checkpoint_of(pipeline), _dead_letters_of(pipeline))


def _checkpoint_of(pipeline: Pipeline) -> Checkpoint | None:
    return None if pipeline.checkpoint is None else Checkpoint(pipeline.checkpoint)


def _dead_letters_of(pipeline: Pipeline) -> DeadLetters | None:
    given = pipeline.dead_letters
    return given if given is None or isinstance(given, DeadLetters) else DeadLetters(given)
