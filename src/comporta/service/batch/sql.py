"""The SQL statements of batches, in the common dialect of ``database/base.py``: one text for both databases.

Every change to the order of a job (a result, the configuration of its sheet) first updates the job's row.
The row lock serializes these changes, and each gets a timestamp later than the previous one, whatever the
clock says. A worker passes the token of its lease with every change; a worker that lost its lease changes
nothing. ``chunk_sql`` has the statements of chunks.
"""

from __future__ import annotations

from comporta.database.base import Statement

NOW = "CAST(:now * 1000000 AS BIGINT)"
NEXT_TIMESTAMP = f"CASE WHEN {NOW} > last_us THEN {NOW} ELSE last_us + 1 END"
LEASE = f"{NOW} + CAST(:lease_us AS BIGINT)"

# A lease that ends later than any lease can is from before the clock was set back; treat it as expired.
UNLEASED = f"(lease_until_us <= {NOW} OR lease_until_us > {NOW} + 2 * CAST(:lease_us AS BIGINT))"
SAME_JOB = "job_id = :job_id"
_IS_LEASED = "job_id = :job_id AND token = CAST(:token AS BIGINT)"

LOCK_JOB = Statement(f"UPDATE batch_jobs SET last_us = {NEXT_TIMESTAMP} WHERE {SAME_JOB} RETURNING last_us")
HAS_ALL_RESULTS = f"EXISTS (SELECT 1 FROM batch_jobs WHERE {SAME_JOB} AND succeeded + failed >= total)"

# -- jobs

_JOB = """
    SELECT job_id, user_id, digest, status, total, succeeded, failed, created_at_us, finished_at_us
    FROM batch_jobs
"""
READ_JOB = Statement(f"{_JOB} WHERE {SAME_JOB}")

_RUNNING = "FROM batch_jobs WHERE status = 'running'"
_OF_USER = f"{_RUNNING} AND user_id = CAST(:user_id AS TEXT)"
_OF_CLIENT = f"{_RUNNING} AND client = CAST(:client AS TEXT) AND client <> ''"
_PENDING_ACCOUNTS = "COALESCE(SUM(total - succeeded - failed), 0)"
COUNT_UNFINISHED = tuple(
    Statement(f"SELECT count(*), CAST({_PENDING_ACCOUNTS} AS INTEGER) {jobs}")
    for jobs in (_OF_USER, _OF_CLIENT)
)
ADD_JOB = Statement(
    f"""
    INSERT INTO batch_jobs (job_id, user_id, client, digest, status, total, created_at_us, last_us)
    SELECT CAST(:job_id AS TEXT), CAST(:user_id AS TEXT), CAST(:client AS TEXT), CAST(:digest AS TEXT),
        'running', CAST(:total AS INTEGER), {NOW}, {NOW}
    WHERE (SELECT count(*) {_RUNNING}) < CAST(:jobs_max AS INTEGER)
        AND (SELECT count(*) {_OF_USER}) < CAST(:user_jobs_max AS INTEGER)
        AND (SELECT {_PENDING_ACCOUNTS} {_OF_USER}) < CAST(:user_accounts_max AS INTEGER)
        AND (SELECT count(*) {_OF_CLIENT}) < CAST(:client_jobs_max AS INTEGER)
        AND (SELECT {_PENDING_ACCOUNTS} {_OF_CLIENT}) < CAST(:client_accounts_max AS INTEGER)
    ON CONFLICT (job_id) DO NOTHING
    """
)
ADD_ACCOUNTS = Statement(
    """
    INSERT INTO batch_results (job_id, position, account)
    SELECT CAST(:job_id AS TEXT), row_number() OVER (ORDER BY listed.place), listed.item
    FROM EACH(:accounts) AS listed
    WHERE EXISTS (SELECT 1 FROM batch_jobs WHERE job_id = :job_id AND digest = :digest)
    ON CONFLICT (job_id, position) DO NOTHING
    """
)

# A job ends when every account has its result, and its sheet has every row or has failed.
_IS_DONE = "status = 'running' AND succeeded + failed >= total"
FINISH_JOB = (
    Statement(f"DELETE FROM batch_chunks WHERE {SAME_JOB} AND {HAS_ALL_RESULTS}"),
    Statement(
        f"""
        UPDATE batch_jobs SET status = 'completed', finished_at_us = {NOW} WHERE {SAME_JOB} AND {_IS_DONE}
            AND NOT EXISTS (SELECT 1 FROM batch_sheets WHERE {SAME_JOB} AND due_us IS NOT NULL)
        RETURNING job_id
        """
    ),
)

READ_RESULTS = Statement(
    f"""
    SELECT position, account, outcome, message, processed_at_us FROM batch_results
    WHERE {SAME_JOB} AND processed_at_us IS NOT NULL
        AND (processed_at_us, position) > (CAST(:after_us AS BIGINT), CAST(:after AS INTEGER))
    ORDER BY processed_at_us, position LIMIT :count
    """
)

_OF_WORKERS = f"FROM batch_chunks WHERE batch_chunks.job_id = batch_jobs.job_id AND lease_until_us > {NOW}"
# Overviews: running jobs, then finished ones, the latest first; an index serves each query.
_OVERVIEW = f"""
    SELECT batch_jobs.job_id, status, total, succeeded, failed, batch_jobs.created_at_us, finished_at_us,
        (SELECT min(owner) {_OF_WORKERS}), (SELECT count(DISTINCT owner) {_OF_WORKERS}),
        backfill_status, backfilled_rows,
        CASE WHEN batch_sheets.lease_until_us > {NOW} THEN batch_sheets.owner ELSE '' END
    FROM batch_jobs LEFT JOIN batch_sheets ON batch_sheets.job_id = batch_jobs.job_id
"""
LIST_RUNNING = Statement(
    f"{_OVERVIEW} WHERE status = 'running' ORDER BY batch_jobs.created_at_us DESC LIMIT :count"
)
LIST_FINISHED = Statement(
    f"{_OVERVIEW} WHERE finished_at_us IS NOT NULL ORDER BY finished_at_us DESC LIMIT :count"
)
JOBS_BY_OWNER = Statement(
    f"""
    SELECT owner, count(DISTINCT job_id) FROM batch_chunks WHERE lease_until_us > {NOW}
    GROUP BY owner LIMIT 1000
    """
)

# -- sheets

_SHEET = """
    SELECT job_id, spreadsheet_id, spreadsheet_url, spreadsheet_name, created_at_us, boundary_us, done_us,
        done_position, backfill_status, backfilled_rows, backfill_error, download_id
    FROM batch_sheets
"""
READ_SHEET = Statement(f"{_SHEET} WHERE {SAME_JOB}")

CONFIGURE_SHEET = (
    Statement(
        f"""
        UPDATE batch_jobs SET last_us = {NEXT_TIMESTAMP} WHERE {SAME_JOB}
        AND NOT EXISTS (SELECT 1 FROM batch_sheets WHERE {SAME_JOB})
        """
    ),
    Statement(
        f"""
        INSERT INTO batch_sheets (job_id, user_id, spreadsheet_id, spreadsheet_url, spreadsheet_name,
            download_id, stores_rows, created_at_us, boundary_us, backfill_status)
        SELECT job_id, CAST(:user_id AS TEXT), CAST(:spreadsheet_id AS TEXT), CAST(:spreadsheet_url AS TEXT),
            CAST(:spreadsheet_name AS TEXT), CAST(:download_id AS TEXT), CAST(:stores_rows AS BOOLEAN),
            last_us, last_us, 'pending'
        FROM batch_jobs WHERE {SAME_JOB}
        ON CONFLICT (job_id) DO NOTHING
        RETURNING job_id
        """
    ),
    READ_SHEET,
)

# The backfill then covers all results so far, including those of a writer that gave up.
_RESTART_BACKFILL = f"""
    boundary_us = (SELECT last_us FROM batch_jobs WHERE {SAME_JOB}),
    backfill_status = 'pending', backfill_error = '', due_us = 0, unwritten = 0,
    attempts = 0, token = token + 1, lease_until_us = 0
"""

RESCHEDULE_BACKFILL = (
    LOCK_JOB,
    Statement(
        f"""
        UPDATE batch_sheets SET {_RESTART_BACKFILL} WHERE {SAME_JOB} AND backfill_status = 'failed'
        RETURNING job_id
        """
    ),
)

# The new sheet is empty, and the row addresses of the removed sheet are useless.
_OF_REMOVED = "spreadsheet_id = :removed_id AND spreadsheet_id <> CAST(:spreadsheet_id AS TEXT)"

REPLACE_SHEET = (
    LOCK_JOB,
    Statement(f"DELETE FROM sheet_rows WHERE {_OF_REMOVED}"),
    Statement(f"DELETE FROM sheet_headers WHERE {_OF_REMOVED}"),
    Statement(
        f"""
        UPDATE batch_sheets SET
            spreadsheet_id = CAST(:spreadsheet_id AS TEXT), spreadsheet_url = :spreadsheet_url,
            spreadsheet_name = :spreadsheet_name, stores_rows = CAST(:stores_rows AS BOOLEAN),
            done_us = 0, done_position = 0, backfilled_rows = 0,
            {_RESTART_BACKFILL}
        WHERE {SAME_JOB} AND spreadsheet_id = :removed_id
        RETURNING job_id
        """
    ),
)

CLAIM_SHEET = Statement(
    f"""
    UPDATE batch_sheets SET
        owner = :owner, token = token + 1, lease_until_us = {LEASE}, attempts = attempts + 1
    WHERE job_id = (
        SELECT job_id FROM batch_sheets
        WHERE due_us <= {NOW} + CAST(:ahead_us AS BIGINT) AND {UNLEASED} AND attempts < :attempts_max
        ORDER BY due_us LIMIT 1 FREE()
    )
    RETURNING job_id, token, spreadsheet_id, boundary_us, done_us, done_position, backfill_status
    """
)
RELEASE_SHEET = Statement(
    f"UPDATE batch_sheets SET owner = '', lease_until_us = 0, attempts = 0 WHERE {_IS_LEASED}"
)

RECORD_PROGRESS = Statement(
    f"""
    UPDATE batch_sheets SET
        done_us = CAST(:done_us AS BIGINT), done_position = :done_position,
        backfilled_rows = backfilled_rows + :backfilled_rows, lease_until_us = {LEASE}, attempts = 0,
        backfill_status = CASE
            WHEN boundary_us <= CAST(:done_us AS BIGINT) THEN 'completed' ELSE backfill_status
        END
    WHERE {_IS_LEASED} RETURNING job_id
    """
)

# Results that were stored meanwhile are due like any others: together with 49 more, or in 2 s.
SHEET_DUE_IN = Statement(f"SELECT due_us - {NOW} FROM batch_sheets WHERE {SAME_JOB} AND due_us IS NOT NULL")
END_SHEET_TURN = (
    LOCK_JOB,
    Statement(
        f"""
        UPDATE batch_sheets SET
            backfill_status = 'completed', owner = '', lease_until_us = 0, attempts = 0,
            unwritten = (
                SELECT count(*) FROM (
                    SELECT 1 FROM batch_results WHERE {SAME_JOB} AND processed_at_us IS NOT NULL
                        AND (processed_at_us, position)
                            > (CAST(:done_us AS BIGINT), CAST(:done_position AS INTEGER))
                    LIMIT :rows_max
                ) AS beyond
            )
        WHERE {_IS_LEASED} RETURNING job_id
        """
    ),
    Statement(
        f"""
        UPDATE batch_sheets SET due_us = CASE
            WHEN unwritten = 0 OR NOT stores_rows THEN NULL
            WHEN unwritten >= :rows_max OR {HAS_ALL_RESULTS} THEN {NOW}
            ELSE {NOW} + CAST(:flush_us AS BIGINT)
        END
        WHERE {_IS_LEASED}
        """
    ),
    SHEET_DUE_IN,
    *FINISH_JOB,
)

FAIL_SHEET = (
    LOCK_JOB,
    Statement(
        f"""
        UPDATE batch_sheets SET
            backfill_status = 'failed', backfill_error = :error, due_us = NULL, lease_until_us = 0
        WHERE {_IS_LEASED} AND due_us IS NOT NULL RETURNING job_id
        """
    ),
    *FINISH_JOB,
)

# Sheets that are claimed again and again without progress need an operator. Their jobs end.
FAIL_HOPELESS = (
    Statement(
        f"""
        UPDATE batch_sheets SET
            backfill_status = 'failed', backfill_error = 'claimed too often without progress', due_us = NULL
        WHERE due_us IS NOT NULL AND {UNLEASED} AND attempts >= :attempts_max RETURNING job_id
        """
    ),
    Statement(
        f"""
        UPDATE batch_jobs SET status = 'completed', finished_at_us = {NOW} WHERE {_IS_DONE} AND NOT EXISTS (
            SELECT 1 FROM batch_sheets WHERE batch_sheets.job_id = batch_jobs.job_id AND due_us IS NOT NULL
        )
        RETURNING job_id
        """
    ),
)

_OLDEST_EXPIRED = f"""
    SELECT job_id FROM batch_jobs
    WHERE finished_at_us < {NOW} - CAST(:keep_us AS BIGINT)
        AND NOT EXISTS (
            SELECT 1 FROM batch_sheets
            WHERE batch_sheets.job_id = batch_jobs.job_id AND batch_sheets.backfill_status = 'pending'
        )
    ORDER BY finished_at_us LIMIT 1
"""
DELETE_OLDEST = (
    Statement(
        f"""
        DELETE FROM sheet_rows WHERE spreadsheet_id IN
            (SELECT spreadsheet_id FROM batch_sheets WHERE job_id IN ({_OLDEST_EXPIRED}))
        """
    ),
    Statement(
        f"""
        DELETE FROM sheet_headers WHERE spreadsheet_id IN
            (SELECT spreadsheet_id FROM batch_sheets WHERE job_id IN ({_OLDEST_EXPIRED}))
        """
    ),
    Statement(f"DELETE FROM batch_sheets WHERE job_id IN ({_OLDEST_EXPIRED})"),
    Statement(f"DELETE FROM batch_chunks WHERE job_id IN ({_OLDEST_EXPIRED})"),
    Statement(f"DELETE FROM batch_results WHERE job_id IN ({_OLDEST_EXPIRED})"),
    Statement(f"DELETE FROM batch_jobs WHERE job_id IN ({_OLDEST_EXPIRED}) RETURNING job_id"),
)

# -- users

# A user's own record takes precedence over the team's.
IS_DIGITAL = Statement(
    """
    SELECT COALESCE(batch_users.digital, batch_teams.digital, FALSE)
    FROM batch_users LEFT JOIN batch_teams ON batch_teams.team = batch_users.team
    WHERE batch_users.user_id = :user_id
    """
)
SET_USER = Statement(
    """
    INSERT INTO batch_users (user_id, team, digital) VALUES (:user_id, :team, :digital)
    ON CONFLICT (user_id) DO UPDATE SET team = excluded.team, digital = excluded.digital
    """
)
SET_USER_DIGITAL = Statement(
    """
    INSERT INTO batch_users (user_id, digital) VALUES (:user_id, :digital)
    ON CONFLICT (user_id) DO UPDATE SET digital = excluded.digital
    """
)
LIST_WHITELIST = Statement(
    """
    SELECT 'team' AS kind, team AS name, NULL, digital FROM batch_teams
    UNION ALL
    SELECT 'user', user_id, batch_users.team, COALESCE(batch_users.digital, batch_teams.digital, FALSE)
    FROM batch_users LEFT JOIN batch_teams ON batch_teams.team = batch_users.team
    ORDER BY 1, 2 LIMIT :count
    """
)
SET_TEAM = Statement(
    """
    INSERT INTO batch_teams (team, digital) VALUES (:team, :digital)
    ON CONFLICT (team) DO UPDATE SET digital = excluded.digital
    """
)
