"""The SQL statements of chunks: the accounts that one worker claims, processes and stores.

A job's accounts are claimed from the first to the last, a chunk at a time. The row of a chunk exists from its
first claim until all its accounts have results. Its number of attempts and of accounts decides how it is
treated:

- No attempts: a worker that shut down released it. Any worker of the job claims it like a new chunk.
- Attempts, several accounts: its worker died. It is split into one chunk for each account without a result.
- One attempt, one account: a suspect, which may have killed its worker. It is claimed by itself.
- More attempts, one account: it is claimed by a worker that does nothing else.
- ``attempts_max`` attempts, one account: it is exhausted, and its result is a failure.

Claims, stores and splits first lock the job's row, so they never overlap.
"""

from __future__ import annotations

from comporta.database.base import Statement
from comporta.service.batch.sql import (
    FINISH_JOB,
    HAS_ALL_RESULTS,
    LEASE,
    LOCK_JOB,
    NOW,
    SAME_JOB,
    SHEET_DUE_IN,
    UNLEASED,
)

_IS_LEASED = f"{SAME_JOB} AND token = CAST(:token AS BIGINT)"
_IS_LIVE = f"lease_until_us > {NOW}"
_IS_RELEASED = f"attempts = 0 AND {UNLEASED}"
_IS_DEAD = f"first_position < last_position AND attempts > 0 AND {UNLEASED}"
_IS_SUSPECT = f"first_position = last_position AND attempts = 1 AND {UNLEASED}"
_IS_LAST_ATTEMPT = (
    f"first_position = last_position AND attempts > 1 AND attempts < :attempts_max AND {UNLEASED}"
)
_IS_EXHAUSTED = f"first_position = last_position AND attempts >= :attempts_max AND {UNLEASED}"

# -- finding work

_CHUNKS_OF_JOB = "SELECT 1 FROM batch_chunks WHERE batch_chunks.job_id = batch_jobs.job_id"
_IS_CLAIMABLE = f"""
    status = 'running' AND job_id NOT IN (SELECT item FROM EACH(:held) AS held)
    AND (next_position <= total OR EXISTS ({_CHUNKS_OF_JOB} AND {_IS_RELEASED}))
"""
PENDING_WORK = Statement(
    f"""
    SELECT
        EXISTS (SELECT 1 FROM batch_jobs WHERE {_IS_CLAIMABLE}),
        (
            SELECT count(*) FROM (
                SELECT 1 FROM batch_jobs
                WHERE {_IS_CLAIMABLE} AND NOT EXISTS ({_CHUNKS_OF_JOB} AND {_IS_LIVE}) LIMIT 100
            ) AS waiting
        ),
        (SELECT min(job_id) FROM batch_chunks WHERE {_IS_DEAD}),
        EXISTS (SELECT 1 FROM batch_chunks WHERE {_IS_SUSPECT}),
        EXISTS (SELECT 1 FROM batch_chunks WHERE {_IS_LAST_ATTEMPT}),
        (SELECT min(job_id) FROM batch_chunks WHERE {_IS_EXHAUSTED}),
        EXISTS (SELECT 1 FROM batch_sheets WHERE due_us <= {NOW} AND {UNLEASED})
    """
)

# Jobs take turns: first the job with the fewest workers, then the one whose last turn was longest ago.
NEXT_JOB = Statement(
    f"""
    SELECT job_id FROM batch_jobs
    WHERE {_IS_CLAIMABLE} AND (served_us = 0 OR CAST(:is_new AS INTEGER) = 0)
    ORDER BY (
        SELECT count(*) FROM batch_chunks WHERE batch_chunks.job_id = batch_jobs.job_id AND {_IS_LIVE}
    ), served_us, created_at_us
    LIMIT 1
    """
)

# -- claiming

_SELECT_CHUNK = """
    SELECT job_id, token, first_position, last_position, attempts FROM batch_chunks
    WHERE token = CAST(:token AS BIGINT)
"""
_SELECT_ACCOUNTS = """
    SELECT position, account FROM batch_chunks
    JOIN batch_results ON batch_results.job_id = batch_chunks.job_id
        AND position >= first_position AND position <= last_position
    WHERE token = CAST(:token AS BIGINT) AND processed_at_us IS NULL ORDER BY position
"""
_CLAIM = f"owner = :owner, token = CAST(:token AS BIGINT), lease_until_us = {LEASE}, attempts = attempts + 1"

# Safe to repeat with the same token, if the reply to the first claim was lost.
CLAIM_CHUNK = (
    Statement(f"UPDATE batch_jobs SET served_us = {NOW} WHERE {SAME_JOB}"),
    Statement(
        f"""
        UPDATE batch_chunks SET {_CLAIM} WHERE {SAME_JOB} AND first_position = (
            SELECT min(first_position) FROM batch_chunks WHERE {SAME_JOB} AND {_IS_RELEASED}
        )
        AND NOT EXISTS (SELECT 1 FROM batch_chunks WHERE {_IS_LEASED})
        """
    ),
    Statement(
        f"""
        INSERT INTO batch_chunks
            (job_id, first_position, last_position, owner, token, lease_until_us, attempts)
        SELECT job_id, next_position,
            CASE WHEN next_position + :count > total THEN total ELSE next_position + :count - 1 END,
            CAST(:owner AS TEXT), CAST(:token AS BIGINT), {LEASE}, 1
        FROM batch_jobs WHERE {SAME_JOB} AND status = 'running' AND next_position <= total
            AND NOT EXISTS (SELECT 1 FROM batch_chunks WHERE {_IS_LEASED})
        """
    ),
    Statement(
        f"""
        UPDATE batch_jobs SET next_position = (
            SELECT last_position + 1 FROM batch_chunks WHERE {_IS_LEASED}
        )
        WHERE {SAME_JOB} AND next_position = (SELECT first_position FROM batch_chunks WHERE {_IS_LEASED})
        """
    ),
    Statement(f"{_SELECT_CHUNK} AND {SAME_JOB}"),
    Statement(_SELECT_ACCOUNTS),
)

CLAIM_SUSPECT, CLAIM_LAST_ATTEMPT = (
    (
        Statement(
            f"""
            UPDATE batch_chunks SET {_CLAIM} WHERE (job_id, first_position) = (
                SELECT job_id, first_position FROM batch_chunks WHERE {condition}
                ORDER BY lease_until_us, job_id, first_position LIMIT 1 FREE()
            )
            """
        ),
        Statement(_SELECT_CHUNK),
        Statement(_SELECT_ACCOUNTS),
    )
    for condition in (_IS_SUSPECT, _IS_LAST_ATTEMPT)
)

# -- storing

# An item is ten digits, a sign and a message: splitting by position needs no JSON functions, which differ
# between the databases. The rows exist already; an upsert keeps the planner from scanning all of them.
_STORE_ROWS = f"""
    INSERT INTO batch_results (job_id, position, account, outcome, message, processed_at_us)
    SELECT held.job_id, CAST(substr(results.item, 1, 10) AS INTEGER), '',
        CASE substr(results.item, 11, 1) WHEN '+' THEN 'success' ELSE 'failed' END,
        substr(results.item, 12), held.last_us
    FROM EACH(:done) AS results CROSS JOIN (
        SELECT job_id, last_us FROM batch_jobs
        WHERE {SAME_JOB} AND EXISTS (SELECT 1 FROM batch_chunks WHERE {_IS_LEASED})
    ) AS held
    WHERE TRUE
    ON CONFLICT (job_id, position) DO UPDATE SET
        outcome = excluded.outcome, message = excluded.message, processed_at_us = excluded.processed_at_us
    WHERE batch_results.processed_at_us IS NULL
"""
_JUST_STORED = f"SELECT count(*) FROM batch_results WHERE {SAME_JOB} AND processed_at_us = batch_jobs.last_us"
_COUNT_STORED = Statement(
    f"""
    UPDATE batch_jobs SET
        succeeded = succeeded + ({_JUST_STORED} AND outcome = 'success'),
        failed = failed + ({_JUST_STORED} AND outcome = 'failed')
    WHERE {SAME_JOB}
    """
)
# A sheet is due at 50 unwritten results, 2 s after the first, and at the end of the job. A sheet that the
# service serves from the database is due only once, for its backfill.
_SCHEDULE_SHEET = Statement(
    f"""
    UPDATE batch_sheets SET
        unwritten = unwritten + :count,
        due_us = CASE
            WHEN due_us <= {NOW} THEN due_us
            WHEN unwritten + :count >= :rows_max OR {HAS_ALL_RESULTS} THEN {NOW}
            ELSE COALESCE(due_us, {NOW} + CAST(:flush_us AS BIGINT))
        END
    WHERE {SAME_JOB} AND backfill_status <> 'failed' AND stores_rows
    """
)

STORE_RESULTS = (
    LOCK_JOB,
    Statement(f"UPDATE batch_chunks SET lease_until_us = {LEASE} WHERE {_IS_LEASED} RETURNING token"),
    Statement(_STORE_ROWS),
    _COUNT_STORED,
    Statement(f"DELETE FROM batch_chunks WHERE {_IS_LEASED} AND CAST(:is_last AS INTEGER) = 1"),
    _SCHEDULE_SHEET,
    SHEET_DUE_IN,
    *FINISH_JOB,
)

RELEASE_CHUNK = Statement(
    f"UPDATE batch_chunks SET owner = '', lease_until_us = 0, attempts = attempts - 1 WHERE {_IS_LEASED}"
)

# -- dead workers

_REVOKE = "UPDATE batch_chunks SET owner = '', token = 0, lease_until_us = 0"

SPLIT_DEAD = (
    LOCK_JOB,
    Statement(f"{_REVOKE} WHERE {SAME_JOB} AND {_IS_DEAD}"),  # from now on, nothing renews them
    Statement(
        f"""
        INSERT INTO batch_chunks (job_id, first_position, last_position, attempts)
        SELECT dead.job_id, position, position, dead.attempts
        FROM (SELECT * FROM batch_chunks WHERE {SAME_JOB} AND {_IS_DEAD}) AS dead
        JOIN batch_results ON batch_results.job_id = dead.job_id
            AND position > dead.first_position AND position <= dead.last_position
        WHERE processed_at_us IS NULL
        ON CONFLICT (job_id, first_position) DO NOTHING
        """
    ),
    Statement(f"UPDATE batch_chunks SET last_position = first_position WHERE {SAME_JOB} AND {_IS_DEAD}"),
)

FAIL_EXHAUSTED = (
    LOCK_JOB,
    Statement(f"{_REVOKE} WHERE {SAME_JOB} AND {_IS_EXHAUSTED}"),
    Statement(
        f"""
        UPDATE batch_results SET
            outcome = 'failed', message = :message,
            processed_at_us = (SELECT last_us FROM batch_jobs WHERE {SAME_JOB})
        WHERE {SAME_JOB} AND processed_at_us IS NULL AND position IN (
            SELECT first_position FROM batch_chunks WHERE {SAME_JOB} AND {_IS_EXHAUSTED}
        )
        RETURNING position
        """
    ),
    _COUNT_STORED,
    Statement(f"DELETE FROM batch_chunks WHERE {SAME_JOB} AND {_IS_EXHAUSTED}"),
    _SCHEDULE_SHEET,
    *FINISH_JOB,
)

# -- leases

RENEW_LEASES = tuple(
    Statement(
        f"""
        UPDATE {table} SET lease_until_us = {LEASE}
        WHERE owner = :owner
            AND job_id || ':' || CAST(token AS TEXT) IN (SELECT item FROM EACH(:{ids}) AS held)
        RETURNING job_id, token
        """
    )
    for table, ids in (("batch_chunks", "chunks"), ("batch_sheets", "sheets"))
)
