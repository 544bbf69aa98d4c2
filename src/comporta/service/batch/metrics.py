"""The counters of batches."""

from __future__ import annotations

from collections.abc import Sequence

from comporta.metrics import count
from comporta.service.batch.models import FAILED, SUCCESS, AccountResult


def count_job(outcome: str) -> None:
    """Count a job that was added or refused, or that ended."""
    count("batch_jobs", outcome=outcome)


def count_results(results: Sequence[AccountResult]) -> None:
    """Count the results of accounts once they are stored."""
    succeeded = sum(result.outcome == SUCCESS for result in results)
    for outcome, number in ((SUCCESS, succeeded), (FAILED, len(results) - succeeded)):
        if number:
            count("batch_results", number, outcome=outcome)


def count_backfill(outcome: str) -> None:
    """Count a backfill that ended."""
    count("batch_backfills", outcome=outcome)


def count_rows(rows: int, by: str) -> None:
    """Count rows written to a sheet; ``by`` is ``job`` or ``backfill``."""
    count("batch_rows", rows, by=by)
