"""The tables of batches: jobs, their chunks, the result of each account, the sheet of a job, the whitelist.

Timestamps are whole microseconds of the database's clock on both databases, because they define the order of
results and of a sheet's configuration. ``last_us`` of a job is the latest timestamp assigned in it.

``next_position`` of a job is the position of its first account that was never part of a chunk, and
``served_us`` is when a chunk of it was last claimed. ``due_us`` of a sheet is when its unwritten results are
to be written, ``NULL`` if it has none; ``unwritten`` counts them. ``client`` of a job is the address that
added it, empty if its user was authenticated. ``stores_rows`` is false for a sheet that the service serves
from these tables and writes nowhere else. ``owner``, ``token``, ``lease_until_us`` and ``attempts`` of a job
are used only by versions that run a job in one worker; they stay so that such a version still runs.
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

# What an earlier version left unfinished goes into chunks, and the sheets of running jobs get a turn.
_CHUNKS = (
    """
    CREATE TABLE batch_chunks (
        job_id TEXT NOT NULL REFERENCES batch_jobs (job_id),
        first_position INTEGER NOT NULL,
        last_position INTEGER NOT NULL,
        owner TEXT NOT NULL DEFAULT '',
        token BIGINT NOT NULL DEFAULT 0,
        lease_until_us BIGINT NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (job_id, first_position)
    )
    """,
    "ALTER TABLE batch_jobs ADD COLUMN next_position INTEGER NOT NULL DEFAULT 1",
    "ALTER TABLE batch_jobs ADD COLUMN served_us BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE batch_sheets ADD COLUMN due_us BIGINT DEFAULT 0",
    "ALTER TABLE batch_sheets ADD COLUMN unwritten INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX idx_batch_sheets_due ON batch_sheets (due_us) WHERE due_us IS NOT NULL",
    """
    UPDATE batch_jobs SET next_position = COALESCE(
        (
            SELECT min(position) FROM batch_results
            WHERE batch_results.job_id = batch_jobs.job_id AND processed_at_us IS NULL
        ),
        total + 1
    )
    """,
    """
    UPDATE batch_sheets SET due_us = NULL
    WHERE backfill_status = 'failed' OR backfill_status = 'completed' AND NOT EXISTS (
        SELECT 1 FROM batch_jobs WHERE batch_jobs.job_id = batch_sheets.job_id AND status = 'running'
    )
    """,
    """
    UPDATE batch_jobs SET status = 'completed', finished_at_us = last_us
    WHERE status = 'running' AND succeeded + failed >= total AND NOT EXISTS (
        SELECT 1 FROM batch_sheets WHERE batch_sheets.job_id = batch_jobs.job_id AND due_us IS NOT NULL
    )
    """,
)

# Anyone who knows the download id may read the sheet, so a sheet without one gets a random id: sheets from
# before this migration and, on PostgreSQL, sheets of an earlier version that is still running.
_DOWNLOAD_IDS_IN_SQLITE = (
    "ALTER TABLE batch_sheets ADD COLUMN download_id TEXT NOT NULL DEFAULT ''",
    "UPDATE batch_sheets SET download_id = lower(hex(randomblob(24)))",
)
_DOWNLOAD_IDS_IN_POSTGRESQL = (
    """
    ALTER TABLE batch_sheets ADD COLUMN download_id TEXT NOT NULL
        DEFAULT replace(CAST(gen_random_uuid() AS TEXT), '-', '')
    """,
)
# The path of a file means nothing to clients: the service serves such sheets.
_SERVED_SHEETS = (
    "ALTER TABLE batch_sheets ADD COLUMN stores_rows BOOLEAN NOT NULL DEFAULT TRUE",
    "UPDATE batch_sheets SET spreadsheet_url = '' WHERE substr(spreadsheet_url, 1, 7) = 'file://'",
    "CREATE UNIQUE INDEX idx_batch_sheets_download ON batch_sheets (download_id) WHERE download_id <> ''",
    "CREATE INDEX idx_batch_sheets_spreadsheet ON batch_sheets (spreadsheet_id)",
)

_CLIENTS = ("ALTER TABLE batch_jobs ADD COLUMN client TEXT NOT NULL DEFAULT ''",)

MIGRATIONS: Final = (
    Migration(200, "batches and their sheets", _TABLES, _TABLES),
    Migration(201, "chunks of batch jobs", _CHUNKS, _CHUNKS),
    Migration(
        210,
        "the ids with which clients download sheets",
        (*_DOWNLOAD_IDS_IN_SQLITE, *_SERVED_SHEETS),
        (*_DOWNLOAD_IDS_IN_POSTGRESQL, *_SERVED_SHEETS),
    ),
    Migration(211, "the clients that added batch jobs", _CLIENTS, _CLIENTS),
)
"""All migrations of batches, in order."""
