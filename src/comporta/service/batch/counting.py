"""What batches count, for whoever wants figures; a sink that fails must not stop what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from comporta.metrics import Metrics, current_metrics
from comporta.service.batch.values import FAILED, SUCCESS, Done


def count_job(outcome: str) -> None:
    """Count a job that was added, or is over."""
    if (sink := current_metrics()) is not None:
        with suppress(Exception):
            sink.counter("batch_jobs", 1, outcome=outcome)


def count_results(done: Sequence[Done]) -> None:
    """Count what became of accounts, once it is stored."""
    if (sink := current_metrics()) is not None:
        with suppress(Exception):
            _count_results(sink, done)


def count_backfill(outcome: str) -> None:
    """Count a backfill that is over."""
    if (sink := current_metrics()) is not None:
        with suppress(Exception):
            sink.counter("batch_backfills", 1, outcome=outcome)


def count_rows(rows: int, by: str) -> None:
    """Count rows that are in a sheet."""
    if (sink := current_metrics()) is not None:
        with suppress(Exception):
            sink.counter("batch_rows", rows, by=by)


def _count_results(sink: Metrics, done: Sequence[Done]) -> None:
    well = sum(each.outcome == SUCCESS for each in done)
    for outcome, count in ((SUCCESS, well), (FAILED, len(done) - well)):
        if count:
            sink.counter("batch_results", count, outcome=outcome)
