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
    if succeeded:
        count("batch_results", succeeded, outcome=SUCCESS)
    count_failed_accounts(len(results) - succeeded)


def count_failed_accounts(number: int) -> None:
    """Count accounts whose result is a failure."""
    if number:
        count("batch_results", number, outcome=FAILED)


def count_backfill(outcome: str) -> None:
    """Count a backfill that ended."""
    count("batch_backfills", outcome=outcome)


def count_rows(rows: int, by: str) -> None:
    """Count rows written to a sheet; ``by`` is ``job`` or ``backfill``."""
    if rows:
        count("batch_rows", rows, by=by)
