"""The tables of shared runs: runs, their lines that are not done, their workers and their dead letters.

A line that is done has no row here. Timestamps are whole microseconds of the database's clock. The counts of
a run are the sums over its workers, plus those in ``comporta_runs``, of workers that were removed.
"""

from __future__ import annotations

from typing import Final

from comporta.database.migrations import Migration

_COUNTS = """
        written BIGINT NOT NULL DEFAULT 0,
        dead BIGINT NOT NULL DEFAULT 0,
        without_rows BIGINT NOT NULL DEFAULT 0,
"""
_TABLES = (
    f"""
    CREATE TABLE comporta_runs (
        run_id TEXT PRIMARY KEY NOT NULL,
        slot TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        identity TEXT NOT NULL,
        options TEXT NOT NULL,
        line_count BIGINT NOT NULL DEFAULT 0,
        {_COUNTS}
        created_at_us BIGINT NOT NULL,
        loaded_at_us BIGINT,
        finished_at_us BIGINT,
        owner TEXT NOT NULL DEFAULT '',
        token BIGINT NOT NULL DEFAULT 0,
        lease_until_us BIGINT NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE comporta_run_lines (
        run_id TEXT NOT NULL,
        position BIGINT NOT NULL,
        sort_key TEXT NOT NULL,
        entry TEXT NOT NULL,
        owner TEXT NOT NULL DEFAULT '',
        attempts INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (run_id, position)
    )
    """,
    "CREATE INDEX idx_comporta_run_lines_free ON comporta_run_lines (run_id, position) WHERE owner = ''",
    "CREATE INDEX idx_comporta_run_lines_held ON comporta_run_lines (run_id, owner) WHERE owner <> ''",
    f"""
    CREATE TABLE comporta_run_workers (
        run_id TEXT NOT NULL,
        worker TEXT NOT NULL,
        {_COUNTS}
        rate DOUBLE PRECISION NOT NULL DEFAULT 0,
        started_at_us BIGINT NOT NULL,
        lease_until_us BIGINT NOT NULL,
        PRIMARY KEY (run_id, worker)
    )
    """,
    """
    CREATE TABLE comporta_run_dead_letters (
        run_id TEXT NOT NULL,
        position BIGINT NOT NULL,
        letter TEXT NOT NULL,
        PRIMARY KEY (run_id, position)
    )
    """,
)

MIGRATIONS: Final = (Migration(300, "shared runs", _TABLES, _TABLES),)
"""All migrations of shared runs, in order; the first shared run in a database applies them."""
