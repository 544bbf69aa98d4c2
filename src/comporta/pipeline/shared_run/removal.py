"""Removes runs, a bounded number of rows at a time, so that no transaction takes long."""

from __future__ import annotations

from typing import Final

from comporta.database.base import Database
from comporta.database.command import execute
from comporta.pipeline.shared_run.commands import delete_run, delete_some, find_old_runs

CHUNK_LINES: Final = 5000
OLD_RUNS_MAX: Final = 10
"""How many old runs one start removes."""


def remove_run(database: Database, run_id: str) -> None:
    """Remove a run, its lines and its dead letters. The rows that it wrote stay."""
    while execute(database, delete_some(run_id, CHUNK_LINES)):
        pass
    execute(database, delete_run(run_id))


def remove_old_runs(database: Database) -> None:
    """Remove runs that finished long ago."""
    for run_id in execute(database, find_old_runs(OLD_RUNS_MAX)):
        remove_run(database, run_id)
