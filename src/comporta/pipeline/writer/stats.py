"""Statistics and metrics of a batch writer."""

from __future__ import annotations

from dataclasses import dataclass

from comporta import metrics


@dataclass(frozen=True, slots=True)
class WriterStatistics:
    """A snapshot of a writer; ``rows_waiting`` includes ``rows_in_flight``."""

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
    """Count a batch that the sink has accepted."""
    metrics.count("writer_rows", rows, writer=writer, outcome="written")
    metrics.observe("writer_flush_seconds", seconds, writer=writer)


def count_dead(writer: str, rows: int) -> None:
    """Count rows that became dead letters."""
    metrics.count("writer_rows", rows, writer=writer, outcome="dead")
