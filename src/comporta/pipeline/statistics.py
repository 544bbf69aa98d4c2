"""What a batch writer tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """How a writer stands: rows that wait (those in flight are among them), and what became of the others."""

    state: str
    rows_waiting: int
    rows_in_flight: int
    capacity: int
    writers_waiting: int
    rows_written: int
    rows_dead: int
    batches_written: int
    retries: int
