"""The progress of a run on disk: confirmed items in the checkpoint, failed items in the dead letters.

Writing to disk blocks, so a dedicated thread does all of it, in order. It saves a checkpoint as soon as an
item was confirmed and the previous checkpoint is on the disk, so there is never a backlog.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
from comporta.pipeline.run.checkpoint import Checkpoint, CheckpointState
from comporta.pipeline.run.item_log import OutcomeCounter
from comporta.pipeline.run.item_sink import AsyncItemSink, BlockingItemSink
from comporta.pipeline.run.reader import EntryReader, open_reader
from comporta.pipeline.run.report import Report
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.sinks.base import ResumePoint
from comporta.runtime import RUNTIME
from comporta.thread_pool import ThreadPool

T = TypeVar("T")

SAVE_SECONDS = 0.05
"""The longest pause between two checkpoints: a kill may repeat the items confirmed since the last one."""

CALLS_MAX = 100_000
"""How many dead letters and checkpoints may be queued for the disk: more than there can be workers."""


class ProgressLog:
    """Confirms items, saves checkpoints and writes dead letters for one run. Always ``close`` it."""

    def __init__(
        self, report: Report, checkpoint: Checkpoint | None, dead_letters: DeadLetters | None
    ) -> None:
        self._report = report
        self._checkpoint = checkpoint
        self.dead_letters = dead_letters
        self._state = CheckpointState({})
        self._pool = ThreadPool("progress-log", 1, calls_max=CALLS_MAX)
        self._held_lock = ExitStack()
        self._changed = asyncio.Event()
        self._advanced = asyncio.Event()
        self._counter = OutcomeCounter(report)
        self.publish_dead_letter = self._counter.publish_dead_letter

    async def open(self, identity: Mapping[str, Any]) -> None:
        """Open the files and load the state of the run."""
        await self._on_thread(lambda: self._open_files(identity))

    @property
    def accepts_dead_letters(self) -> bool:
        """Whether there is a file for dead letters."""
        return self.dead_letters is not None

    async def open_reader(self, source: Any, ahead: int) -> EntryReader:
        """Start to read the source, at most ``ahead`` entries ahead."""
        return await open_reader(source, ahead)

    def item_sink(self, sink: Any, *, is_async: bool) -> AsyncItemSink | BlockingItemSink:
        """Return the sink to which the rows of items are written, from where the run left off."""
        return AsyncItemSink(sink) if is_async else BlockingItemSink(sink, self.resume_point)

    def background_jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Return the job that saves checkpoints."""
        return [self.save_continuously()]

    def is_done(self, position: int) -> bool:
        """Return whether an item is confirmed, by this run or an earlier one."""
        return position in self._state.confirmed

    async def wait_for_window(self, position: int, window: int) -> None:
        """Wait until a position is less than ``window`` ahead of the first item that is not done."""
        while position - self._state.confirmed.low_watermark >= window:
            self._advanced.clear()
            await self._advanced.wait()

    def confirm(
        self,
        positions: Iterable[int],
        *,
        written: int = 0,
        dead: int = 0,
        output_end: int | None = None,
    ) -> None:
        """Record that items are done, and how far the file of the sink holds their rows."""
        count = 0
        for count, position in enumerate(positions, start=1):  # noqa: B007 - used after the loop
            self._state.confirmed.add(position)
        self._state.written += written
        self._state.dead += dead
        if output_end is not None:
            self._state.output_end = output_end
        self._changed.set()
        self._advanced.set()
        self._counter.count(written=written, dead=dead, nothing=count - written - dead)

    @property
    def resume_point(self) -> ResumePoint | None:
        """Where the run continues in the file of its sink; ``None`` without a checkpoint.

        A complete run has nothing to remove: other programs wrote what follows its rows.
        """
        if self._checkpoint is None:
            return None
        end = None if self._state.complete else self._state.output_end
        return ResumePoint(self._state.run, end, self._checkpoint.journal_path)

    async def save_output_end(self, end: int | None) -> None:
        """Save where the rows of this run begin in the file of its sink, before it writes the first one."""
        if end is not None:
            self._state.output_end = end
            await self._save()

    def dead_letter_of(
        self, entry: SourceEntry, reason: str, attempts: int = 0, key: Hashable = None
    ) -> DeadLetter:
        """Return the dead letter of an item; its ``id`` names the run and the item."""
        item_id = None if self._checkpoint is None else f"{self._state.run}-{entry.position}"
        return DeadLetter(entry.item, reason, attempts, key, entry.number, id=item_id)

    async def record_dead_letter(self, entry: SourceEntry, dead_letter: DeadLetter) -> None:
        """Write a dead letter and confirm its item."""
        await self._on_thread(lambda: self._required_dead_letters().extend([dead_letter]))
        self.confirm([entry.position], dead=1)
        self.publish_dead_letter(entry.name(dead_letter.key), dead_letter.reason)

    async def save_continuously(self) -> None:
        """Save the checkpoint whenever an item has been confirmed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = RUNTIME.monotonic()
            await self._save()
            await asyncio.sleep(min(SAVE_SECONDS, RUNTIME.monotonic() - began))  # at most half of the time

    async def close(self, *, complete: bool, failed: bool) -> None:
        """Save the final checkpoint and close the files.

        A run that failed keeps its journal: its sink may have written rows that are not confirmed.
        """
        try:
            self._state.complete = complete
            if self._state.source:
                await self._save()
                if self._checkpoint is not None and not failed:
                    await self._on_thread(partial(self._checkpoint.journal_path.unlink, missing_ok=True))
        finally:
            await self._on_thread(self._close_files)
            self._pool.close()

    async def _save(self) -> None:
        if self._checkpoint is not None:
            checkpoint, standing = self._checkpoint, self._state.copy()
            await self._on_thread(lambda: checkpoint.save(standing))

    def _open_files(self, identity: Mapping[str, Any]) -> None:
        if self._checkpoint is not None:
            self._held_lock.enter_context(self._checkpoint.locked())
            self._state = self._checkpoint.load(identity)
        if self.dead_letters is not None:
            self.dead_letters.open()
            self._confirm_dead_letters(self.dead_letters)
        if self._checkpoint is not None:
            self._report.dead_before = self._state.dead
            self._checkpoint.save(self._state)  # so that a run that is killed at once can resume

    def _confirm_dead_letters(self, dead_letters: DeadLetters) -> None:
        """Confirm the items whose dead letters a killed run wrote after its last checkpoint."""
        for position in dead_letters.positions_of(self._state.run):
            if position not in self._state.confirmed:
                self._state.confirmed.add(position)
                self._state.dead += 1

    def _close_files(self) -> None:
        self._held_lock.close()
        if self.dead_letters is not None:
            self.dead_letters.close()

    def _required_dead_letters(self) -> DeadLetters:
        assert self.dead_letters is not None  # noqa: S101 - callers check it
        return self.dead_letters

    async def _on_thread(self, work: Callable[[], T]) -> T:
        """Run blocking work on the thread, to its end even if the caller is cancelled."""
        return await asyncio.shield(self._pool.submit(work))
