"""What a batch writer tells of itself."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from comporta.metrics import current_metrics


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


def count_written(writer: str, rows: int, seconds: float) -> None:
    """Count a batch that is written; a sink of figures that fails must not stop what it counts."""
    sink = current_metrics()
    if sink is not None:
        with suppress(Exception):
            sink.counter("writer_rows", rows, writer=writer, outcome="written")
            sink.histogram("writer_flush_seconds", seconds, writer=writer)


def count_dead(writer: str, rows: int) -> None:
    """Count rows that went to dead letters."""
    sink = current_metrics()
    if sink is not None:
        with suppress(Exception):
            sink.counter("writer_rows", rows, writer=writer, outcome="dead")
