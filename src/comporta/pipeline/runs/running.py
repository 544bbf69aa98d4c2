"""One run of a pipeline: who reads, who works, who notes what is done, and how it all ends.

Every task reports to one place; the first error ends the run for all, and is what the run raises. An item is
*done* when its row is in the sink, when it is in the dead letters, or when its step had nothing to write.
Only then is it confirmed; whatever else becomes of it, the next run reads it again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any

from comporta import events
from comporta.errors import PipelineError
from comporta.pipeline.channel import Channel
from comporta.pipeline.letters import DeadLetters
from comporta.pipeline.runs.books import Books
from comporta.pipeline.runs.checkpoint import Checkpoint
from comporta.pipeline.runs.interrupts import Interrupts
from comporta.pipeline.runs.outlet import Outlet
from comporta.pipeline.runs.progress import Progress, progress_of, unseen
from comporta.pipeline.runs.reading import HANDFUL_MAX, Reading, identity_of, reading_of
from comporta.pipeline.runs.report import COMPLETE, DRAINED, STOPPED, Report
from comporta.pipeline.runs.sources import Entry
from comporta.pipeline.runs.turns import Turns
from comporta.pipeline.runs.working import Work
from comporta.threads import clear_up

if TYPE_CHECKING:
    from comporta.pipeline.runs.pipeline import Pipeline

STOP_SECONDS = 5.0
"""How long a run that is stopped waits for its sink to take what is done."""

SHOW_SECONDS = 0.25
SAY_SECONDS = 60.0
"""How often progress is an event."""

_Task = asyncio.Task[None]


class Run:
    """One run, from its beginning to its end."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.report = Report(pipeline.name)
        self._books = Books(self.report, _checkpoint_of(pipeline), _letters_of(pipeline))
        self._outlet: Outlet | None = None
        self._work: Work | None = None
        self._reading: Reading | None = None
        self._channel: Channel[tuple[Entry, Hashable]] = Channel(pipeline.capacity)
        self._window = pipeline.window
        self._turns: Turns[Entry] = Turns()
        self._fewer_wait = asyncio.Event()
        self._feeder: _Task | None = None
        self._crew: set[_Task] = set()
        self._helpers: set[_Task] = set()
        self._error: BaseException | None = None
        self._ended = COMPLETE
        self._dropping = False
        self._stopping = asyncio.Event()
        self._began = time.monotonic()

    async def made(self, *, signals: bool) -> Report:
        """Do it all, and tell how it went."""
        with Interrupts(self.drain, self.stop, wanted=signals):
            await self._kept(self._begun_and_done())
            await self._end()
        self.report.seconds = time.monotonic() - self._began
        if self._error is not None:
            raise self._error
        self.report.ended = self._ended
        self._say("pipeline_ended", f"{self._ended}: {self.report}")
        return self.report

    def drain(self) -> None:
        """Begin no more items. What can be read again is left where it is; what cannot, is done."""
        if self._ended != COMPLETE:
            return
        self._ended = DRAINED
        self._say("pipeline_draining", f"begins no more items: {self.report}")
        if self._reading is not None:
            self._reading.stop()
            self._dropping = self._reading.rereadable or self._pipeline.checkpoint is not None
        if self._feeder is not None and self._dropping:
            self._feeder.cancel()

    def stop(self) -> None:
        """End now."""
        self._ended = STOPPED
        self._stopping.set()
        for task in self._crew:
            task.cancel()

    # how it goes --------------------------------------------------------------------------------------

    async def _begun_and_done(self) -> None:
        beginning = self._hire([self._begin()], self._crew)  # so that it can be stopped as well
        await asyncio.wait(beginning)
        if self._ended == COMPLETE:  # nobody was in a hurry
            [self._feeder] = self._hire([self._feed()], self._crew)
            self._hire([self._work_on() for _ in range(self._pipeline.workers)], self._crew)
            self._hire([self._books.keep(), self._show()], self._helpers)
            await asyncio.wait(self._crew)

    async def _begin(self) -> None:
        pipeline = self._pipeline
        identity = {} if pipeline.checkpoint is None else await identity_of(pipeline.source)
        await self._books.open(identity)
        if pipeline.sink is not None:
            outlet = Outlet(pipeline, pipeline.sink, self._books)
            await outlet.open()
            self._outlet = outlet
            self._window = max(self._window, 2 * pipeline.max_rows)  # or a batch would never be full
        self._work = Work(pipeline, self.report, self._books, self._outlet)
        self._reading = await reading_of(pipeline.source, pipeline.capacity)
        self.report.total = self._reading.total

    def _hire(self, jobs: list[Coroutine[Any, Any, None]], group: set[_Task]) -> list[_Task]:
        tasks = [asyncio.create_task(job) for job in jobs]
        group.update(tasks)
        for task in tasks:
            task.add_done_callback(self._left)
        return tasks

    def _left(self, task: _Task) -> None:
        """Look at why a task ended: an error, or somebody else's cancelling, ends the run."""
        if task.cancelled():
            if self._ended != STOPPED and task in self._crew:
                self._fail(PipelineError(f"{self._pipeline.name}: a step was cancelled from elsewhere"))
        elif (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    # who reads ----------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        """Bring entries to the workers, as they have room for them."""
        assert self._reading is not None  # noqa: S101 - begun
        size = min(HANDFUL_MAX, self._pipeline.capacity)
        try:
            async for handful in self._reading:
                for first in range(0, len(handful), size):
                    await self._hand_out(handful[first : first + size])
        except asyncio.CancelledError:
            if not self._dropping:
                raise
        finally:
            clear_up(self._channel.close)

    async def _hand_out(self, entries: list[Entry]) -> None:
        fresh = [entry for entry in entries if not self._books.is_done(entry.position)]
        self.report.skipped += len(entries) - len(fresh)
        if not fresh:
            await asyncio.sleep(0)  # or a long file that is done would hold the loop
            return
        await self._books.room_for(entries[-1].position, self._window)
        if self._pipeline.key is None:
            await self._channel.send_many([(entry, None) for entry in fresh])
        else:
            await self._hand_out_in_turn(fresh)

    async def _hand_out_in_turn(self, entries: list[Entry]) -> None:
        assert self._work is not None  # noqa: S101 - begun
        while self._turns.waiting >= self._pipeline.capacity:
            self._fewer_wait.clear()
            await self._fewer_wait.wait()
        keyed = [self._work.keyed(entry) for entry in entries]
        await self._channel.send_many([(entry, key) for entry, key in keyed if self._turns.enter(key, entry)])

    # who works ----------------------------------------------------------------------------------------

    async def _work_on(self) -> None:
        assert self._work is not None  # noqa: S101 - begun
        in_turn = self._pipeline.key is not None
        async for first, key in self._channel:
            entry: Entry | None = first
            while entry is not None:
                if not self._dropping:
                    await self._work.do(entry, key)
                entry = self._next_in_turn(key) if in_turn else None

    def _next_in_turn(self, key: Hashable) -> Entry | None:
        self._fewer_wait.set()
        return self._turns.leave(key)

    # who tells ----------------------------------------------------------------------------------------

    async def _show(self) -> None:
        """Tell how far it is, until cancelled."""
        say_at = self._began + SAY_SECONDS
        with progress_of(self._pipeline.progress) as shown:
            show = shown
            while True:
                now = time.monotonic()
                self.report.seconds = now - self._began
                show = self._shown_by(show)
                if now >= say_at:
                    say_at = now + SAY_SECONDS
                    self._say("pipeline_progress", str(self.report))
                await asyncio.sleep(SHOW_SECONDS)

    def _shown_by(self, show: Progress) -> Progress:
        """Show how far it is; a terminal that is gone must not end the run of a whole night."""
        try:
            show(self.report)
        except Exception as error:
            self._say("pipeline_progress", f"progress is shown no longer: {type(error).__name__}: {error}")
            return unseen
        return show

    def _say(self, kind: str, text: str) -> None:
        events.publish(kind, self._pipeline.name, text, "info")

    # how it ends --------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Close everything, whatever fails meanwhile; what is done is noted last."""
        if self._reading is not None:
            self._reading.stop()
        await self._kept(_gone(self._crew))
        if self._reading is not None:
            self._reading.close()
        if self._work is not None:
            self._work.close()
        if self._outlet is not None:
            await self._kept(self._close(self._outlet))
        await self._kept(_gone(self._helpers))
        await self._kept(self._books.close(complete=self._ended == COMPLETE))

    async def _close(self, outlet: Outlet) -> None:
        """Write what is done, however long it takes; somebody who stops the run waits only so long."""
        closing = asyncio.create_task(outlet.close(None))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((closing, stopping), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            self._fail(error)
        stopping.cancel()
        if closing.done():
            closing.result()
            return
        await _gone({closing})
        await outlet.close(STOP_SECONDS)

    async def _kept(self, work: Awaitable[None]) -> None:
        """Await something, and keep its error for the end; the first one counts."""
        try:
            await work
        except BaseException as error:
            self._fail(error)


async def _gone(tasks: set[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _checkpoint_of(pipeline: Pipeline) -> Checkpoint | None:
    return None if pipeline.checkpoint is None else Checkpoint(pipeline.checkpoint)


def _letters_of(pipeline: Pipeline) -> DeadLetters | None:
    given = pipeline.dead_letters
    return given if given is None or isinstance(given, DeadLetters) else DeadLetters(given)
