"""The protocol of an object that records finished items, in a checkpoint file or a shared run's table.

:class:`OutcomeCounter` is common to both: it counts items in the report and in metrics.
"""

from __future__ import annotations

from collections.abc import Coroutine, Hashable, Iterable, Mapping
from typing import Any, Protocol

from comporta import events, metrics
from comporta.pipeline.dead_letters import DeadLetter, DeadLetters
from comporta.pipeline.run.reader import EntryReader
from comporta.pipeline.run.report import Report, quantity
from comporta.pipeline.run.sources import SourceEntry
from comporta.runtime import RUNTIME

_EVENT_SECONDS = 10.0


class ItemLog(Protocol):
    """Records which items of a run are done. Always ``close`` it."""

    @property
    def accepts_dead_letters(self) -> bool:
        """Whether an item that fails for good is recorded; otherwise it ends the run."""

    @property
    def dead_letters(self) -> DeadLetters | None:
        """The file for the items of batches that fail for good, if there is one."""

    async def open(self, identity: Mapping[str, Any]) -> None:
        """Load the state of the run."""

    async def open_reader(self, source: Any, ahead: int) -> EntryReader:
        """Start to read the source, at most ``ahead`` entries ahead."""

    def item_sink(self, sink: Any, *, is_async: bool) -> Any:
        """Return the sink to which the rows of items are written."""

    async def save_output_end(self, end: int | None) -> None:
        """Save where the rows of this run begin in the file of its sink, if it has one."""

    def background_jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Return the jobs that run beside the items, until they are cancelled."""

    def is_done(self, position: int) -> bool:
        """Return whether an item was confirmed, by this run or an earlier one."""

    async def wait_for_window(self, position: int, window: int) -> None:
        """Wait until a position is less than ``window`` ahead of the first item that is not done."""

    def confirm(
        self, positions: Iterable[int], *, written: int = 0, dead: int = 0, output_end: int | None = None
    ) -> None:
        """Record that items are done, and how far the file of the sink holds their rows."""

    def dead_letter_of(
        self, entry: SourceEntry, reason: str, attempts: int = 0, key: Hashable = None
    ) -> DeadLetter:
        """Return the dead letter of an item."""

    async def record_dead_letter(self, entry: SourceEntry, dead_letter: DeadLetter) -> None:
        """Record a dead letter and confirm its item."""

    def publish_dead_letter(self, name: str, reason: str) -> None:
        """Publish an event for the dead letter of the item with this name, at most one in 10 s."""

    async def close(self, *, complete: bool, failed: bool) -> None:
        """Save everything; ``complete`` and ``failed`` say how the run ended."""


class OutcomeCounter:
    """Counts the items of a run in its report and in metrics, and publishes events for dead letters."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next_event_at = 0.0

    def count(self, *, written: int, dead: int, nothing: int) -> None:
        """Count items that are done."""
        self._report.done += written + dead + nothing
        self._report.written += written
        self._report.dead += dead
        for outcome, number in (("written", written), ("dead", dead), ("nothing", nothing)):
            if number:
                metrics.count("pipeline_items", number, pipeline=self._report.name, outcome=outcome)

    def publish_dead_letter(self, name: str, reason: str) -> None:
        """Publish an event for the dead letter of the item with this name, at most one in 10 s."""
        now = RUNTIME.monotonic()
        if now >= self._next_event_at:
            self._next_event_at = now + _EVENT_SECONDS
            dead = quantity(self._report.dead, "dead letter")
            text = f"gave up {name}: {reason} ({dead} in this run)"
            events.publish("pipeline_dead_letter", self._report.name, text)
