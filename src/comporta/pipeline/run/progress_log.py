"""The progress of a run on disk: confirmed items in the checkpoint, failed items in the dead letters.

Writing to disk blocks, so one thread of its own does all of it, in order. It saves a checkpoint as soon as an
item was confirmed and the checkpoint before is on the disk, so there is never a backlog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from comporta import events, metrics
from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
from comporta.pipeline.run.checkpoint import Checkpoint, CheckpointState
from comporta.pipeline.run.report import Report
from comporta.thread_pool import ThreadPool

T = TypeVar("T")

SAVE_SECONDS = 0.05
"""The longest pause between two checkpoints: items confirmed since may be done again after a kill."""

CALLS_MAX = 100_000
"""How many dead letters and checkpoints may be queued for the disk: more than there can be workers."""

_EVENT_SECONDS = 10.0


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
        self._next_event_at = 0.0

    async def open(self, identity: Mapping[str, Any]) -> None:
        """Open the files and load the state of the run."""
        await self._on_thread(lambda: self._open_files(identity))

    def is_done(self, position: int) -> bool:
        """Return whether an item is confirmed, by this run or an earlier one."""
        return position in self._state.confirmed

    async def wait_for_window(self, position: int, window: int) -> None:
        """Wait until a position is less than ``window`` ahead of the first item that is not done."""
        while position - self._state.confirmed.low_watermark >= window:
            self._advanced.clear()
            await self._advanced.wait()

    def confirm(self, positions: Iterable[int], *, written: int = 0, dead: int = 0) -> None:
        """Record that items are done."""
        count = 0
        for count, position in enumerate(positions, start=1):  # noqa: B007 - used after the loop
            self._state.confirmed.add(position)
        self._state.written += written
        self._state.dead += dead
        self._report.done += count
        self._report.written += written
        self._report.dead += dead
        self._changed.set()
        self._advanced.set()
        self._count(written=written, dead=dead, nothing=count - written - dead)

    async def record_dead_letter(self, position: int, dead_letter: DeadLetter) -> None:
        """Write a dead letter and confirm its item."""
        await self._on_thread(lambda: self._required_dead_letters().extend([dead_letter]))
        self.confirm([position], dead=1)
        self.publish_dead_letter(dead_letter.position, dead_letter.reason)

    def publish_dead_letter(self, number: Any, reason: str) -> None:
        """Publish an event for a dead letter, at most one in 10 s."""
        now = time.monotonic()
        if now >= self._next_event_at:
            self._next_event_at = now + _EVENT_SECONDS
            text = f"gave up item {number}: {reason} ({self._report.dead} dead letters in this run)"
            events.publish("pipeline_dead_letter", self._report.name, text)

    async def save_continuously(self) -> None:
        """Save the checkpoint whenever an item was confirmed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            await self._save()
            await asyncio.sleep(min(SAVE_SECONDS, time.monotonic() - began))  # at most half of the time

    async def close(self, *, complete: bool) -> None:
        """Save the final checkpoint and close the files."""
        try:
            self._state.complete = complete
            if self._state.source:
                await self._save()
        finally:
            await self._on_thread(self._close_files)
            self._pool.close()

    async def _save(self) -> None:
        if self._checkpoint is not None:
            checkpoint, standing = self._checkpoint, self._state.copy()
            await self._on_thread(lambda: checkpoint.save(standing))

    def _open_files(self, identity: Mapping[str, Any]) -> None:
        if self.dead_letters is not None:
            self.dead_letters.open()
        if self._checkpoint is not None:
            self._held_lock.enter_context(self._checkpoint.locked())
            self._state = self._checkpoint.load(identity)
            self._report.dead_before = self._state.dead
            self._checkpoint.save(self._state)  # so that a run that is killed at once can resume

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

    def _count(self, **outcomes: int) -> None:
        for outcome, number in outcomes.items():
            if number:
                metrics.count("pipeline_items", number, pipeline=self._report.name, outcome=outcome)
