"""The SQL statements of batches, in the common dialect of ``database/base.py``: one text for both databases.

Every change to the order of a job (a result, the configuration of its sheet) first updates the job's row.
The row lock serializes these changes, and each gets a timestamp later than the previous one, whatever the
clock says. A worker passes the token of its lease with every change; a worker that lost its lease changes
nothing.
"""

from __future__ import annotations

from comporta.database.base import Statement

_NOW = "CAST(:now * 1000000 AS BIGINT)"
_NEXT_TIMESTAMP = f"CASE WHEN {_NOW} > last_us THEN {_NOW} ELSE last_us + 1 END"
_LEASE = f"{_NOW} + CAST(:lease_us AS BIGINT)"

# A lease that ends later than any lease can is from before the clock was set back; treat it as expired.
_UNLEASED = f"(lease_until_us <= {_NOW} OR lease_until_us > {_NOW} + 2 * CAST(:lease_us AS BIGINT))"
_IS_LEASED = "job_id = :job_id AND token = CAST(:token AS BIGINT)"
_SAME_JOB = "job_id = :job_id"

# -- jobs

_JOB = """
    SELECT job_id, user_id, digest, status, total, succeeded, failed, created_at_us, finished_at_us
    FROM batch_jobs
"""
READ_JOB = Statement(f"{_JOB} WHERE {_SAME_JOB}")

ADD_JOB = Statement(
    f"""
    INSERT INTO batch_jobs (job_id, user_id, digest, status, total, created_at_us, last_us)
    SELECT CAST(:job_id AS TEXT), CAST(:user_id AS TEXT), CAST(:digest AS TEXT), 'running',
        CAST(:total AS INTEGER), {_NOW}, {_NOW}
    WHERE (SELECT count(*) FROM batch_jobs WHERE status = 'running') < CAST(:jobs_max AS INTEGER)
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

CLAIM_JOB = Statement(
    f"""
    UPDATE batch_jobs SET
        owner = :owner, token = token + 1, lease_until_us = {_LEASE}, attempts = attempts + 1
    WHERE job_id = (
        SELECT job_id FROM batch_jobs WHERE status = 'running' AND {_UNLEASED} AND attempts < :attempts_max
        ORDER BY created_at_us LIMIT 1 FREE()
    )
    RETURNING job_id, token, total
    """
)
# Rows that the previous worker had not confirmed go to the backfill, up to now; confirmed rows are done.
MOVE_BOUNDARY = tuple(
    Statement(text)
    for text in (
        f"UPDATE batch_jobs SET last_us = {_NEXT_TIMESTAMP} WHERE {_IS_LEASED}",
        f"""
        UPDATE batch_sheets SET
            boundary_us = (SELECT last_us FROM batch_jobs WHERE {_SAME_JOB}),
            backfill_status = CASE WHEN backfill_status = 'failed' THEN 'failed' ELSE 'pending' END,
            token = token + 1, lease_until_us = 0
        WHERE {_SAME_JOB} AND EXISTS (SELECT 1 FROM batch_jobs WHERE {_IS_LEASED})
        """,
    )
)

UNFINISHED = Statement(
    f"""
    SELECT position, account FROM batch_results
    WHERE {_SAME_JOB} AND processed_at_us IS NULL AND position > :after ORDER BY position LIMIT :count
    """
)

# An item is ten digits, a sign and a message: splitting by position needs no JSON functions, which differ
# between the databases. The rows exist already; an upsert keeps the planner from scanning all of them.
_STORE_ROWS = f"""
    INSERT INTO batch_results (job_id, position, account, outcome, message, processed_at_us)
    SELECT held.job_id, CAST(substr(results.item, 1, 10) AS INTEGER), '',
        CASE substr(results.item, 11, 1) WHEN '+' THEN 'success' ELSE 'failed' END,
        substr(results.item, 12), held.last_us
    FROM EACH(:done) AS results CROSS JOIN (SELECT job_id, last_us FROM batch_jobs WHERE {_IS_LEASED}) AS held
    WHERE TRUE
    ON CONFLICT (job_id, position) DO UPDATE SET
        outcome = excluded.outcome, message = excluded.message, processed_at_us = excluded.processed_at_us
    WHERE batch_results.processed_at_us IS NULL
"""
_JUST_STORED = (
    f"SELECT count(*) FROM batch_results WHERE {_SAME_JOB} AND processed_at_us = batch_jobs.last_us"
)
STORE_RESULTS = (
    Statement(
        f"""
        UPDATE batch_jobs SET last_us = {_NEXT_TIMESTAMP}, attempts = 0 WHERE {_IS_LEASED}
        RETURNING last_us
        """
    ),
    Statement(_STORE_ROWS),
    Statement(
        f"""
        UPDATE batch_jobs SET
            succeeded = succeeded + ({_JUST_STORED} AND outcome = 'success'),
            failed = failed + ({_JUST_STORED} AND outcome = 'failed')
        WHERE {_IS_LEASED}
        """
    ),
    Statement(
        f"""
        SELECT spreadsheet_id, boundary_us FROM batch_sheets
        WHERE {_SAME_JOB} AND backfill_status <> 'failed'
        """
    ),
)

FINISH_JOB = Statement(
    f"""
    UPDATE batch_jobs SET status = :status, finished_at_us = {_NOW}, lease_until_us = 0
    WHERE {_IS_LEASED} AND status = 'running'
    RETURNING status
    """
)

READ_RESULTS = Statement(
    f"""
    SELECT position, account, outcome, message, processed_at_us FROM batch_results
    WHERE {_SAME_JOB} AND processed_at_us IS NOT NULL
        AND (processed_at_us, position) > (CAST(:after_us AS BIGINT), CAST(:after AS INTEGER))
    ORDER BY processed_at_us, position LIMIT :count
    """
)

# Overviews: running jobs, then finished ones, the latest first; an index serves each query.
_OVERVIEW = f"""
    SELECT batch_jobs.job_id, status, total, succeeded, failed, batch_jobs.created_at_us, finished_at_us,
        CASE WHEN batch_jobs.lease_until_us > {_NOW} THEN batch_jobs.owner ELSE '' END,
        backfill_status, backfilled_rows,
        CASE WHEN batch_sheets.lease_until_us > {_NOW} THEN batch_sheets.owner ELSE '' END
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
    SELECT owner, count(*) FROM batch_jobs WHERE status = 'running' AND lease_until_us > {_NOW}
    GROUP BY owner LIMIT 1000
    """
)

# -- sheets

_SHEET = """
    SELECT job_id, spreadsheet_id, spreadsheet_url, spreadsheet_name, created_at_us, boundary_us, done_us,
        done_position, backfill_status, backfilled_rows, backfill_error
    FROM batch_sheets
"""
READ_SHEET = Statement(f"{_SHEET} WHERE {_SAME_JOB}")

CONFIGURE_SHEET = (
    Statement(
        f"""
        UPDATE batch_jobs SET last_us = {_NEXT_TIMESTAMP} WHERE {_SAME_JOB}
        AND NOT EXISTS (SELECT 1 FROM batch_sheets WHERE {_SAME_JOB})
        """
    ),
    Statement(
        f"""
        INSERT INTO batch_sheets (job_id, user_id, spreadsheet_id, spreadsheet_url, spreadsheet_name,
            created_at_us, boundary_us, backfill_status)
        SELECT job_id, CAST(:user_id AS TEXT), CAST(:spreadsheet_id AS TEXT), CAST(:spreadsheet_url AS TEXT),
            CAST(:spreadsheet_name AS TEXT), last_us, last_us, 'pending'
        FROM batch_jobs WHERE {_SAME_JOB}
        ON CONFLICT (job_id) DO NOTHING
        RETURNING job_id
        """
    ),
    READ_SHEET,
)

# The backfill then covers all results so far, including those of a writer that gave up.
_RESTART_BACKFILL = f"""
    boundary_us = (SELECT last_us FROM batch_jobs WHERE {_SAME_JOB}),
    backfill_status = 'pending', backfill_error = '', attempts = 0, token = token + 1, lease_until_us = 0
"""

RESCHEDULE_BACKFILL = (
    Statement(f"UPDATE batch_jobs SET last_us = {_NEXT_TIMESTAMP} WHERE {_SAME_JOB}"),
    Statement(
        f"""
        UPDATE batch_sheets SET {_RESTART_BACKFILL} WHERE {_SAME_JOB} AND backfill_status = 'failed'
        RETURNING job_id
        """
    ),
)

# The new sheet is empty, and the row addresses of the removed sheet are useless.
_OF_REMOVED = "spreadsheet_id = :removed_id AND spreadsheet_id <> CAST(:spreadsheet_id AS TEXT)"

REPLACE_SHEET = (
    Statement(f"UPDATE batch_jobs SET last_us = {_NEXT_TIMESTAMP} WHERE {_SAME_JOB}"),
    Statement(f"DELETE FROM sheet_rows WHERE {_OF_REMOVED}"),
    Statement(f"DELETE FROM sheet_headers WHERE {_OF_REMOVED}"),
    Statement(
        f"""
        UPDATE batch_sheets SET
            spreadsheet_id = CAST(:spreadsheet_id AS TEXT), spreadsheet_url = :spreadsheet_url,
            spreadsheet_name = :spreadsheet_name, done_us = 0, done_position = 0, backfilled_rows = 0,
            {_RESTART_BACKFILL}
        WHERE {_SAME_JOB} AND spreadsheet_id = :removed_id
        RETURNING job_id
        """
    ),
)

CLAIM_BACKFILL = Statement(
    f"""
    UPDATE batch_sheets SET
        owner = :owner, token = token + 1, lease_until_us = {_LEASE}, attempts = attempts + 1
    WHERE job_id = (
        SELECT job_id FROM batch_sheets
        WHERE backfill_status = 'pending' AND {_UNLEASED} AND attempts < :attempts_max
        ORDER BY created_at_us LIMIT 1 FREE()
    )
    RETURNING job_id, token, spreadsheet_id, boundary_us, done_us, done_position
    """
)

READ_BACKFILL_PAGE = Statement(
    f"""
    SELECT position, account, message, processed_at_us FROM batch_results
    WHERE {_SAME_JOB} AND outcome = 'success' AND message <> ''
        AND processed_at_us < CAST(:boundary_us AS BIGINT)
        AND (processed_at_us, position) > (CAST(:after_us AS BIGINT), CAST(:after AS INTEGER))
    ORDER BY processed_at_us, position LIMIT :count
    """
)

RECORD_BACKFILL_PROGRESS = Statement(
    f"""
    UPDATE batch_sheets SET
        done_us = CAST(:done_us AS BIGINT), done_position = :done_position,
        backfilled_rows = backfilled_rows + :rows, lease_until_us = {_LEASE}, attempts = 0
    WHERE {_IS_LEASED} RETURNING job_id
    """
)

FINISH_BACKFILL = Statement(
    f"""
    UPDATE batch_sheets SET backfill_status = :status, backfill_error = :error, lease_until_us = 0
    WHERE {_IS_LEASED} AND backfill_status = 'pending' RETURNING job_id
    """
)

# Only after a complete backfill: before that, earlier rows are not confirmed yet.
RECORD_WRITTEN = Statement(
    f"""
    UPDATE batch_sheets SET done_us = CAST(:done_us AS BIGINT), done_position = :done_position
    WHERE {_SAME_JOB} AND backfill_status = 'completed' AND boundary_us = CAST(:boundary_us AS BIGINT)
        AND (done_us, done_position) < (CAST(:done_us AS BIGINT), CAST(:done_position AS INTEGER))
    """
)

RECORD_SHEET_FAILURE = Statement(
    f"""
    UPDATE batch_sheets SET
        backfill_status = 'failed', backfill_error = :error, token = token + 1, lease_until_us = 0
    WHERE {_SAME_JOB} AND boundary_us = CAST(:boundary_us AS BIGINT)
        AND EXISTS (SELECT 1 FROM batch_jobs WHERE {_IS_LEASED})
    """
)

# -- leases

RENEW_LEASES = tuple(
    Statement(
        f"""
        UPDATE {table} SET lease_until_us = {_LEASE}
        WHERE owner = :owner
            AND job_id || ':' || CAST(token AS TEXT) IN (SELECT item FROM EACH(:{ids}) AS held)
        RETURNING job_id, token
        """
    )
    for table, ids in (("batch_jobs", "jobs"), ("batch_sheets", "backfills"))
)

_RELEASE = "owner = '', lease_until_us = 0, attempts = 0"
RELEASE_JOB = Statement(f"UPDATE batch_jobs SET {_RELEASE} WHERE {_IS_LEASED}")
RELEASE_BACKFILL = Statement(f"UPDATE batch_sheets SET {_RELEASE} WHERE {_IS_LEASED}")

HAS_UNLEASED_WORK = Statement(
    f"""
    SELECT
        EXISTS (SELECT 1 FROM batch_jobs WHERE status = 'running' AND {_UNLEASED}),
        EXISTS (SELECT 1 FROM batch_sheets WHERE backfill_status = 'pending' AND {_UNLEASED})
    """
)

# Claimed again and again without progress: an operator has to look.
FAIL_HOPELESS = (
    Statement(
        f"""
        UPDATE batch_jobs SET status = 'failed', finished_at_us = {_NOW}
        WHERE status = 'running' AND {_UNLEASED} AND attempts >= :attempts_max RETURNING job_id
        """
    ),
    Statement(
        f"""
        UPDATE batch_sheets SET backfill_status = 'failed',
            backfill_error = 'claimed too often without progress'
        WHERE backfill_status = 'pending' AND {_UNLEASED} AND attempts >= :attempts_max RETURNING job_id
        """
    ),
)

_OLDEST_EXPIRED = f"""
    SELECT job_id FROM batch_jobs
    WHERE finished_at_us < {_NOW} - CAST(:keep_us AS BIGINT)
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
