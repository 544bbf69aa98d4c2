"""The SQL of batches, in the words of ``database/base.py``: one text for both databases.

Whatever is told in the order of a job (a result, the configuration of its sheet) begins with the job's row
and so waits there for the others; each gets a moment that is later than the last one given out, whatever the
clock says. Whoever works on a row shows the token of its lease: one that was overtaken changes nothing.
"""

from __future__ import annotations

from comporta.database.base import Statement

_NOW = "CAST(:now * 1000000 AS BIGINT)"
_NEXT = f"CASE WHEN {_NOW} > last_us THEN {_NOW} ELSE last_us + 1 END"
_LEASE = f"{_NOW} + CAST(:lease_us AS BIGINT)"

# A lease that ends later than any may is from before somebody set the clock back.
_FREE = f"(lease_until_us <= {_NOW} OR lease_until_us > {_NOW} + 2 * CAST(:lease_us AS BIGINT))"
_HELD = "job_id = :job_id AND token = CAST(:token AS BIGINT)"
_OF_JOB = "job_id = :job_id"

# -- jobs

JOB = """
    SELECT job_id, user_id, digest, status, total, succeeded, failed, created_at_us, finished_at_us
    FROM batch_jobs
"""
READ_JOB = Statement(f"{JOB} WHERE {_OF_JOB}")

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
        SELECT job_id FROM batch_jobs WHERE status = 'running' AND {_FREE} AND attempts < :attempts_max
        ORDER BY created_at_us LIMIT 1 FREE()
    )
    RETURNING job_id, token, total
    """
)
# What the last one who ran it had not confirmed is the backfill's, up to now; what it confirmed is done.
MOVE_BOUNDARY = tuple(
    Statement(text)
    for text in (
        f"UPDATE batch_jobs SET last_us = {_NEXT} WHERE {_HELD}",
        f"""
        UPDATE batch_sheets SET
            boundary_us = (SELECT last_us FROM batch_jobs WHERE {_OF_JOB}),
            backfill_status = CASE WHEN backfill_status = 'failed' THEN 'failed' ELSE 'pending' END,
            token = token + 1, lease_until_us = 0
        WHERE {_OF_JOB} AND EXISTS (SELECT 1 FROM batch_jobs WHERE {_HELD})
        """,
    )
)

UNFINISHED = Statement(
    f"""
    SELECT position, account FROM batch_results
    WHERE {_OF_JOB} AND processed_at_us IS NULL AND position > :after ORDER BY position LIMIT :count
    """
)

# Ten digits, a sign and a message: what is taken apart by place needs no JSON that both databases know.
# Their rows are there already; put this way, no planner can think of looking through all of them.
_STORE = f"""
    INSERT INTO batch_results (job_id, position, account, outcome, message, processed_at_us)
    SELECT held.job_id, CAST(substr(told.item, 1, 10) AS INTEGER), '',
        CASE substr(told.item, 11, 1) WHEN '+' THEN 'success' ELSE 'failed' END,
        substr(told.item, 12), held.last_us
    FROM EACH(:done) AS told CROSS JOIN (SELECT job_id, last_us FROM batch_jobs WHERE {_HELD}) AS held
    WHERE TRUE
    ON CONFLICT (job_id, position) DO UPDATE SET
        outcome = excluded.outcome, message = excluded.message, processed_at_us = excluded.processed_at_us
    WHERE batch_results.processed_at_us IS NULL
"""
_AT_LAST = f"SELECT count(*) FROM batch_results WHERE {_OF_JOB} AND processed_at_us = batch_jobs.last_us"
STORE = (
    Statement(f"UPDATE batch_jobs SET last_us = {_NEXT}, attempts = 0 WHERE {_HELD} RETURNING last_us"),
    Statement(_STORE),
    Statement(
        f"""
        UPDATE batch_jobs SET
            succeeded = succeeded + ({_AT_LAST} AND outcome = 'success'),
            failed = failed + ({_AT_LAST} AND outcome = 'failed')
        WHERE {_HELD}
        """
    ),
    Statement(
        f"""
        SELECT spreadsheet_id, boundary_us FROM batch_sheets
        WHERE {_OF_JOB} AND backfill_status <> 'failed'
        """
    ),
)

FINISH = Statement(
    f"""
    UPDATE batch_jobs SET status = :status, finished_at_us = {_NOW}, lease_until_us = 0
    WHERE {_HELD} AND status = 'running'
    RETURNING status
    """
)

RESULTS = Statement(
    f"""
    SELECT position, account, outcome, message, processed_at_us FROM batch_results
    WHERE {_OF_JOB} AND processed_at_us IS NOT NULL
        AND (processed_at_us, position) > (CAST(:after_us AS BIGINT), CAST(:after AS INTEGER))
    ORDER BY processed_at_us, position LIMIT :count
    """
)

# What people look at: those under way, then those that ended; each by an index, the latest first.
_SHOWN = f"""
    SELECT batch_jobs.job_id, status, total, succeeded, failed, batch_jobs.created_at_us, finished_at_us,
        CASE WHEN batch_jobs.lease_until_us > {_NOW} THEN batch_jobs.owner ELSE '' END,
        backfill_status, backfilled_rows,
        CASE WHEN batch_sheets.lease_until_us > {_NOW} THEN batch_sheets.owner ELSE '' END
    FROM batch_jobs LEFT JOIN batch_sheets ON batch_sheets.job_id = batch_jobs.job_id
"""
SHOW_RUNNING = Statement(
    f"{_SHOWN} WHERE status = 'running' ORDER BY batch_jobs.created_at_us DESC LIMIT :count"
)
SHOW_ENDED = Statement(f"{_SHOWN} WHERE finished_at_us IS NOT NULL ORDER BY finished_at_us DESC LIMIT :count")
HOLDERS = Statement(
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
READ_SHEET = Statement(f"{_SHEET} WHERE {_OF_JOB}")

CONFIGURE = (
    Statement(
        f"""
        UPDATE batch_jobs SET last_us = {_NEXT} WHERE {_OF_JOB}
        AND NOT EXISTS (SELECT 1 FROM batch_sheets WHERE {_OF_JOB})
        """
    ),
    Statement(
        f"""
        INSERT INTO batch_sheets (job_id, user_id, spreadsheet_id, spreadsheet_url, spreadsheet_name,
            created_at_us, boundary_us, backfill_status)
        SELECT job_id, CAST(:user_id AS TEXT), CAST(:spreadsheet_id AS TEXT), CAST(:spreadsheet_url AS TEXT),
            CAST(:spreadsheet_name AS TEXT), last_us, last_us, 'pending'
        FROM batch_jobs WHERE {_OF_JOB}
        ON CONFLICT (job_id) DO NOTHING
        RETURNING job_id
        """
    ),
    READ_SHEET,
)

# All results so far are the backfill's then: those of whoever gave up as well.
_AGAIN = f"""
    boundary_us = (SELECT last_us FROM batch_jobs WHERE {_OF_JOB}),
    backfill_status = 'pending', backfill_error = '', attempts = 0, token = token + 1, lease_until_us = 0
"""

RESCHEDULE = (
    Statement(f"UPDATE batch_jobs SET last_us = {_NEXT} WHERE {_OF_JOB}"),
    Statement(
        f"UPDATE batch_sheets SET {_AGAIN} WHERE {_OF_JOB} AND backfill_status = 'failed' RETURNING job_id"
    ),
)

# Nothing is in the new one yet; the addresses in the one that is gone are nobody's any more.
_OF_REMOVED = "spreadsheet_id = :removed_id AND spreadsheet_id <> CAST(:spreadsheet_id AS TEXT)"

REPLACE_SHEET = (
    Statement(f"UPDATE batch_jobs SET last_us = {_NEXT} WHERE {_OF_JOB}"),
    Statement(f"DELETE FROM sheet_rows WHERE {_OF_REMOVED}"),
    Statement(f"DELETE FROM sheet_headers WHERE {_OF_REMOVED}"),
    Statement(
        f"""
        UPDATE batch_sheets SET
            spreadsheet_id = CAST(:spreadsheet_id AS TEXT), spreadsheet_url = :spreadsheet_url,
            spreadsheet_name = :spreadsheet_name, done_us = 0, done_position = 0, backfilled_rows = 0,
            {_AGAIN}
        WHERE {_OF_JOB} AND spreadsheet_id = :removed_id
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
        WHERE backfill_status = 'pending' AND {_FREE} AND attempts < :attempts_max
        ORDER BY created_at_us LIMIT 1 FREE()
    )
    RETURNING job_id, token, spreadsheet_id, boundary_us, done_us, done_position
    """
)

TO_BACKFILL = Statement(
    f"""
    SELECT position, account, message, processed_at_us FROM batch_results
    WHERE {_OF_JOB} AND outcome = 'success' AND message <> ''
        AND processed_at_us < CAST(:boundary_us AS BIGINT)
        AND (processed_at_us, position) > (CAST(:after_us AS BIGINT), CAST(:after AS INTEGER))
    ORDER BY processed_at_us, position LIMIT :count
    """
)

BACKFILLED = Statement(
    f"""
    UPDATE batch_sheets SET
        done_us = CAST(:done_us AS BIGINT), done_position = :done_position,
        backfilled_rows = backfilled_rows + :rows, lease_until_us = {_LEASE}, attempts = 0
    WHERE {_HELD} RETURNING job_id
    """
)

BACKFILL_ENDED = Statement(
    f"""
    UPDATE batch_sheets SET backfill_status = :status, backfill_error = :error, lease_until_us = 0
    WHERE {_HELD} AND backfill_status = 'pending' RETURNING job_id
    """
)

# Only behind a backfill that is complete: until then there are rows before these that nobody confirmed.
WRITTEN = Statement(
    f"""
    UPDATE batch_sheets SET done_us = CAST(:done_us AS BIGINT), done_position = :done_position
    WHERE {_OF_JOB} AND backfill_status = 'completed' AND boundary_us = CAST(:boundary_us AS BIGINT)
        AND (done_us, done_position) < (CAST(:done_us AS BIGINT), CAST(:done_position AS INTEGER))
    """
)

GIVEN_UP = Statement(
    f"""
    UPDATE batch_sheets SET
        backfill_status = 'failed', backfill_error = :error, token = token + 1, lease_until_us = 0
    WHERE {_OF_JOB} AND boundary_us = CAST(:boundary_us AS BIGINT)
        AND EXISTS (SELECT 1 FROM batch_jobs WHERE {_HELD})
    """
)

# -- leases

RENEW = tuple(
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

_GIVEN_BACK = "owner = '', lease_until_us = 0, attempts = 0"
GIVE_BACK_JOB = Statement(f"UPDATE batch_jobs SET {_GIVEN_BACK} WHERE {_HELD}")
GIVE_BACK_BACKFILL = Statement(f"UPDATE batch_sheets SET {_GIVEN_BACK} WHERE {_HELD}")

WAITING = Statement(
    f"""
    SELECT
        EXISTS (SELECT 1 FROM batch_jobs WHERE status = 'running' AND {_FREE}),
        EXISTS (SELECT 1 FROM batch_sheets WHERE backfill_status = 'pending' AND {_FREE})
    """
)

# What was taken up again and again and never got on: somebody has to look.
HOPELESS = (
    Statement(
        f"""
        UPDATE batch_jobs SET status = 'failed', finished_at_us = {_NOW}
        WHERE status = 'running' AND {_FREE} AND attempts >= :attempts_max RETURNING job_id
        """
    ),
    Statement(
        f"""
        UPDATE batch_sheets SET backfill_status = 'failed', backfill_error = 'taken up too often'
        WHERE backfill_status = 'pending' AND {_FREE} AND attempts >= :attempts_max RETURNING job_id
        """
    ),
)

_OLD = f"""
    SELECT job_id FROM batch_jobs
    WHERE finished_at_us < {_NOW} - CAST(:keep_us AS BIGINT)
        AND NOT EXISTS (
            SELECT 1 FROM batch_sheets
            WHERE batch_sheets.job_id = batch_jobs.job_id AND batch_sheets.backfill_status = 'pending'
        )
    ORDER BY finished_at_us LIMIT 1
"""
FORGET = (
    Statement(
        f"""
        DELETE FROM sheet_rows WHERE spreadsheet_id IN
            (SELECT spreadsheet_id FROM batch_sheets WHERE job_id IN ({_OLD}))
        """
    ),
    Statement(
        f"""
        DELETE FROM sheet_headers WHERE spreadsheet_id IN
            (SELECT spreadsheet_id FROM batch_sheets WHERE job_id IN ({_OLD}))
        """
    ),
    Statement(f"DELETE FROM batch_sheets WHERE job_id IN ({_OLD})"),
    Statement(f"DELETE FROM batch_results WHERE job_id IN ({_OLD})"),
    Statement(f"DELETE FROM batch_jobs WHERE job_id IN ({_OLD}) RETURNING job_id"),
)

# -- users

# What a user's own record says goes before what is said of the team.
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
LET_USER = Statement(
    """
    INSERT INTO batch_users (user_id, digital) VALUES (:user_id, :digital)
    ON CONFLICT (user_id) DO UPDATE SET digital = excluded.digital
    """
)
LISTED = Statement(
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
