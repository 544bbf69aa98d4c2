"""The tables of batches: jobs, the result of each account, the sheet of a job, and the whitelist.

Timestamps are whole microseconds of the database's clock on both databases, because they define the order of
results and of a sheet's configuration. ``last_us`` of a job is the latest timestamp assigned in it.
"""

from __future__ import annotations

from typing import Final

from comporta.database.migrations import Migration

_TABLES = (
    """
    CREATE TABLE batch_jobs (
        job_id TEXT PRIMARY KEY NOT NULL,
        user_id TEXT NOT NULL,
        digest TEXT NOT NULL,
        status TEXT NOT NULL,
        total INTEGER NOT NULL,
        succeeded INTEGER NOT NULL DEFAULT 0,
        failed INTEGER NOT NULL DEFAULT 0,
        created_at_us BIGINT NOT NULL,
        last_us BIGINT NOT NULL,
        finished_at_us BIGINT,
        owner TEXT NOT NULL DEFAULT '',
        token BIGINT NOT NULL DEFAULT 0,
        lease_until_us BIGINT NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0
    )
    """,
    """
    CREATE TABLE batch_results (
        job_id TEXT NOT NULL REFERENCES batch_jobs (job_id),
        position INTEGER NOT NULL,
        account TEXT NOT NULL,
        outcome TEXT,
        message TEXT,
        processed_at_us BIGINT,
        PRIMARY KEY (job_id, position)
    )
    """,
    "CREATE INDEX idx_batch_results_order ON batch_results (job_id, processed_at_us, position)",
    """
    CREATE TABLE batch_sheets (
        job_id TEXT PRIMARY KEY NOT NULL REFERENCES batch_jobs (job_id),
        user_id TEXT NOT NULL,
        spreadsheet_id TEXT NOT NULL,
        spreadsheet_url TEXT NOT NULL,
        spreadsheet_name TEXT NOT NULL,
        created_at_us BIGINT NOT NULL,
        boundary_us BIGINT NOT NULL,
        done_us BIGINT NOT NULL DEFAULT 0,
        done_position INTEGER NOT NULL DEFAULT 0,
        backfill_status TEXT NOT NULL,
        backfilled_rows INTEGER NOT NULL DEFAULT 0,
        backfill_error TEXT NOT NULL DEFAULT '',
        owner TEXT NOT NULL DEFAULT '',
        token BIGINT NOT NULL DEFAULT 0,
        lease_until_us BIGINT NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0
    )
    """,
    "CREATE INDEX idx_batch_jobs_running ON batch_jobs (created_at_us) WHERE status = 'running'",
    "CREATE INDEX idx_batch_jobs_finished ON batch_jobs (finished_at_us) WHERE finished_at_us IS NOT NULL",
    "CREATE INDEX idx_batch_sheets_pending ON batch_sheets (created_at_us) WHERE backfill_status = 'pending'",
    "CREATE TABLE batch_teams (team TEXT PRIMARY KEY NOT NULL, digital BOOLEAN NOT NULL)",
    "CREATE TABLE batch_users (user_id TEXT PRIMARY KEY NOT NULL, team TEXT, digital BOOLEAN)",
)

MIGRATIONS: Final = (Migration(200, "batches and their sheets", _TABLES, _TABLES),)
"""All migrations of batches, in order."""
