"""What is done, noted where the next run finds it; and what was given up, in the dead letters.

Writing to disk blocks, so it is done on a thread of its own, one thing after another. A checkpoint is saved
as soon as something was confirmed and the one before is on the disk: at most so often, never a backlog.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

from comporta import events
from comporta.metrics import current_metrics
from comporta.pipeline.hands import Hands
from comporta.pipeline.letters import DeadLetters, Letter
from comporta.pipeline.runs.checkpoint import Checkpoint, Standing
from comporta.pipeline.runs.report import Report

T = TypeVar("T")

SAVE_SECONDS = 0.05
"""The longest rest between two checkpoints: what was confirmed since may be done again after a kill."""

_SAY_SECONDS = 10.0


class Books:
    """Confirms, saves and buries, for one run. ``close`` it, whatever happened."""

    def __init__(self, report: Report, checkpoint: Checkpoint | None, letters: DeadLetters | None) -> None:
        self._report = report
        self._checkpoint = checkpoint
        self.letters = letters
        self._standing = Standing({})
        self._desk = Hands(1, "comporta-books")
        self._held = ExitStack()
        self._changed = asyncio.Event()
        self._moved = asyncio.Event()
        self._say_at = 0.0

    async def open(self, identity: Mapping[str, Any]) -> None:
        """See that all can be written, and find out where the run stands."""
        await self._at_the_desk(lambda: self._opened(identity))

    def is_done(self, position: int) -> bool:
        """Whether an item was confirmed, now or by a run before."""
        return position in self._standing.confirmed

    async def room_for(self, position: int, window: int) -> None:
        """Wait until nobody who is not done is further back than the window is wide."""
        while position - self._standing.confirmed.low >= window:
            self._moved.clear()
            await self._moved.wait()

    def confirm(self, positions: Iterable[int], *, written: int = 0, dead: int = 0) -> None:
        """Note that items are done."""
        count = 0
        for count, position in enumerate(positions, start=1):  # noqa: B007 - it is how many there were
            self._standing.confirmed.add(position)
        self._standing.written += written
        self._standing.dead += dead
        self._report.done += count
        self._report.written += written
        self._report.dead += dead
        self._changed.set()
        self._moved.set()
        self._count(written=written, dead=dead, nothing=count - written - dead)

    async def bury(self, position: int, letter: Letter) -> None:
        """Keep what was given up, and confirm it."""
        await self._at_the_desk(lambda: self._letters_of_run().extend([letter]))
        self.confirm([position], dead=1)
        self.say_dead(letter.position, letter.reason)

    def say_dead(self, number: Any, reason: str) -> None:
        """Tell people that something was given up, but not of each one in a flood."""
        now = time.monotonic()
        if now >= self._say_at:
            self._say_at = now + _SAY_SECONDS
            text = f"gave up item {number}: {reason} ({self._report.dead} dead letters in this run)"
            events.publish("pipeline_dead_letter", self._report.name, text)

    async def keep(self) -> None:
        """Save the checkpoint whenever something was confirmed, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = time.monotonic()
            await self._save()
            await asyncio.sleep(min(SAVE_SECONDS, time.monotonic() - began))  # no more than half of the time

    async def close(self, *, complete: bool) -> None:
        """Note the last of it, and let go."""
        try:
            self._standing.complete = complete
            if self._standing.source:
                await self._save()
        finally:
            await self._at_the_desk(self._let_go)
            self._desk.close()

    async def _save(self) -> None:
        if self._checkpoint is not None:
            checkpoint, standing = self._checkpoint, self._standing.copy()
            await self._at_the_desk(lambda: checkpoint.save(standing))

    def _opened(self, identity: Mapping[str, Any]) -> None:
        if self.letters is not None:
            self.letters.open()
        if self._checkpoint is not None:
            self._held.enter_context(self._checkpoint.hold())
            self._standing = self._checkpoint.load(identity)
            self._report.dead_before = self._standing.dead
            self._checkpoint.save(self._standing)  # so that a run that is killed at once can be gone on with

    def _let_go(self) -> None:
        self._held.close()
        if self.letters is not None:
            self.letters.close()

    def _letters_of_run(self) -> DeadLetters:
        assert self.letters is not None  # noqa: S101 - whoever buries has looked
        return self.letters

    async def _at_the_desk(self, work: Callable[[], T]) -> T:
        """Do what blocks; to its end, even if nobody waits for it any more."""
        return await asyncio.shield(self._desk.do(work))

    def _count(self, **outcomes: int) -> None:
        sink = current_metrics()
        if sink is None:
            return
        for outcome, number in outcomes.items():
            if number:
                with suppress(Exception):  # a sink that fails must not stop what happens
                    sink.counter("pipeline_items", number, pipeline=self._report.name, outcome=outcome)
