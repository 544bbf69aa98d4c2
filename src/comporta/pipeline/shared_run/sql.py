"""The SQL statements of shared runs, in the common dialect of ``database/base.py``.

A line belongs to the worker named in its ``owner``. Settling deletes lines only if they still belong to the
worker that settles them, in the transaction that writes their rows.
"""

from __future__ import annotations

from comporta.database.base import Statement
from comporta.database.leases import LEASE_UNTIL, NOW_US, UNLEASED

_SAME_RUN = "run_id = :run_id"

# -- runs

ADD_RUN = Statement(
    f"""
    INSERT INTO comporta_runs (run_id, slot, name, identity, options, created_at_us)
    SELECT CAST(:run_id AS TEXT), CAST(:slot AS TEXT), CAST(:name AS TEXT), CAST(:identity AS TEXT),
        CAST(:options AS TEXT), {NOW_US}
    WHERE TRUE
    ON CONFLICT DO NOTHING
    """
)
FIND_RUN = Statement("SELECT run_id, name, options FROM comporta_runs WHERE run_id = :run_id OR slot = :slot")

FINISH_RUN = Statement(
    f"""
    UPDATE comporta_runs SET finished_at_us = {NOW_US}
    WHERE {_SAME_RUN} AND loaded_at_us IS NOT NULL AND finished_at_us IS NULL
        AND NOT EXISTS (SELECT 1 FROM comporta_run_lines WHERE {_SAME_RUN})
    """
)
READ_FINISHED = Statement(f"SELECT finished_at_us IS NOT NULL FROM comporta_runs WHERE {_SAME_RUN}")

# -- loading

CLAIM_LOADING = Statement(
    f"""
    UPDATE comporta_runs SET owner = :worker, token = token + 1, lease_until_us = {LEASE_UNTIL}
    WHERE {_SAME_RUN} AND loaded_at_us IS NULL AND {UNLEASED}
    RETURNING token, line_count
    """
)
READ_LOADED = Statement(f"SELECT loaded_at_us IS NOT NULL FROM comporta_runs WHERE {_SAME_RUN}")

_IS_LOADER = f"{_SAME_RUN} AND token = CAST(:token AS BIGINT) AND loaded_at_us IS NULL"

EXTEND_LEASE = Statement(
    f"""
    UPDATE comporta_runs SET line_count = line_count + CAST(:count AS BIGINT), lease_until_us = {LEASE_UNTIL}
    WHERE {_IS_LOADER} AND line_count = CAST(:first AS BIGINT)
    RETURNING line_count
    """
)
"""Counts lines that follow in the same transaction; only the worker that has the lease may add them, once."""

# An item is the 32 characters of a key and an entry.
ADD_LINES = Statement(
    """
    INSERT INTO comporta_run_lines (run_id, position, sort_key, entry)
    SELECT CAST(:run_id AS TEXT), CAST(:first AS BIGINT) - 1 + row_number() OVER (ORDER BY listed.place),
        trim(substr(listed.item, 1, 32)), substr(listed.item, 33)
    FROM EACH(:lines) AS listed
    WHERE TRUE
    """
)
FINISH_LOADING = Statement(
    f"""
    UPDATE comporta_runs SET loaded_at_us = {NOW_US}, lease_until_us = 0 WHERE {_IS_LOADER}
    RETURNING run_id
    """
)
RELEASE_LOADING = Statement(f"UPDATE comporta_runs SET lease_until_us = 0 WHERE {_IS_LOADER}")

# -- claims

LOCK_RUN = Statement(f"SELECT run_id FROM comporta_runs WHERE {_SAME_RUN} LOCK()")

# Lines of workers that died, and lines of this worker that it does not know about: it claimed them, and the
# reply of the database was lost.
RECLAIM_LINES = Statement(
    f"""
    WITH abandoned AS MATERIALIZED (
        SELECT position FROM comporta_run_lines
        WHERE {_SAME_RUN} AND owner <> '' AND (
            owner NOT IN (
                SELECT worker FROM comporta_run_workers WHERE {_SAME_RUN} AND NOT {UNLEASED}
            )
            OR owner = :worker AND position NOT IN (
                SELECT CAST(listed.item AS BIGINT) FROM EACH(:held) AS listed
            )
        )
        FREE()
    )
    UPDATE comporta_run_lines SET owner = ''
    WHERE {_SAME_RUN} AND position IN (SELECT position FROM abandoned)
    """
)


def _claim(condition: str) -> Statement:
    return Statement(
        f"""
        WITH picked AS MATERIALIZED (
            SELECT position FROM comporta_run_lines WHERE {_SAME_RUN} AND owner = '' {condition}
            ORDER BY position LIMIT :count FREE()
        )
        UPDATE comporta_run_lines SET owner = :worker, attempts = attempts + 1
        WHERE {_SAME_RUN} AND position IN (SELECT position FROM picked)
        RETURNING position, attempts, entry
        """
    )


CLAIM_LINES = _claim("")

# All lines of a key belong to one worker at a time, which claims them in order. Claims take turns (LOCK_RUN):
# otherwise one could skip a line that another is about to claim, and take a later line of the same key.
CLAIM_LINES_BY_KEY = _claim(
    f"""
    AND (sort_key = '' OR sort_key NOT IN (
        SELECT sort_key FROM comporta_run_lines WHERE {_SAME_RUN} AND owner <> '' AND owner <> :worker
    ))
    """
)

RELEASE_LINES = Statement(
    f"""
    UPDATE comporta_run_lines SET owner = '', attempts = attempts - 1
    WHERE {_SAME_RUN} AND owner <> '' AND owner = :worker
    """
)

# -- settling

DELETE_LINES = Statement(
    f"""
    DELETE FROM comporta_run_lines
    WHERE {_SAME_RUN} AND owner = :worker
        AND position IN (SELECT CAST(listed.item AS BIGINT) FROM EACH(:positions) AS listed)
    RETURNING position
    """
)

# An item is the 19 digits of a position and a dead letter.
ADD_DEAD_LETTERS = Statement(
    """
    INSERT INTO comporta_run_dead_letters (run_id, position, letter)
    SELECT CAST(:run_id AS TEXT), CAST(substr(listed.item, 1, 19) AS BIGINT), substr(listed.item, 20)
    FROM EACH(:letters) AS listed
    WHERE TRUE
    """
)

# -- workers

COUNT_LINES = Statement(
    f"""
    INSERT INTO comporta_run_workers
        (run_id, worker, written, dead, without_rows, started_at_us, lease_until_us)
    SELECT run_id, CAST(:worker AS TEXT), CAST(:written AS BIGINT), CAST(:dead AS BIGINT),
        CAST(:without_rows AS BIGINT), {NOW_US}, {LEASE_UNTIL}
    FROM comporta_runs WHERE {_SAME_RUN}
    ON CONFLICT (run_id, worker) DO UPDATE SET
        written = comporta_run_workers.written + excluded.written,
        dead = comporta_run_workers.dead + excluded.dead,
        without_rows = comporta_run_workers.without_rows + excluded.without_rows,
        lease_until_us = excluded.lease_until_us
    """
)
"""Registers the worker or renews its lease, and adds to its counts, unless the run was removed."""

SET_RATE = Statement(
    f"""
    UPDATE comporta_run_workers SET rate = CAST(:rate AS DOUBLE PRECISION)
    WHERE {_SAME_RUN} AND worker = :worker
    """
)
END_WORKER = Statement(
    f"""
    UPDATE comporta_run_workers SET lease_until_us = {NOW_US}, rate = 0
    WHERE {_SAME_RUN} AND worker = :worker
    """
)

_ENDED_LONG_AGO = f"""
    {_SAME_RUN} AND lease_until_us <= {NOW_US} - CAST(:kept_us AS BIGINT)
"""


def _sum_of_ended(column: str) -> str:
    return (
        f"{column} = {column} + COALESCE((SELECT CAST(SUM({column}) AS BIGINT) FROM comporta_run_workers"
        f" WHERE {_ENDED_LONG_AGO}), 0)"
    )


REMOVE_ENDED_WORKERS = (
    LOCK_RUN,
    Statement(
        f"""
        UPDATE comporta_runs SET
            {_sum_of_ended("written")},
            {_sum_of_ended("dead")},
            {_sum_of_ended("without_rows")}
        WHERE {_SAME_RUN}
        """
    ),
    Statement(f"DELETE FROM comporta_run_workers WHERE {_ENDED_LONG_AGO}"),
)

# -- overviews

_IS_LIVE = f"w.lease_until_us > {NOW_US}"
_RUNS = f"""
    SELECT r.run_id, r.name, r.identity, r.line_count, r.created_at_us, r.loaded_at_us, r.finished_at_us,
        CAST(r.written + COALESCE(SUM(w.written), 0) AS BIGINT),
        CAST(r.dead + COALESCE(SUM(w.dead), 0) AS BIGINT),
        CAST(r.without_rows + COALESCE(SUM(w.without_rows), 0) AS BIGINT),
        CAST(COALESCE(SUM(CASE WHEN {_IS_LIVE} THEN 1 ELSE 0 END), 0) AS BIGINT),
        COALESCE(SUM(CASE WHEN {_IS_LIVE} THEN w.rate ELSE 0 END), 0)
    FROM comporta_runs AS r LEFT JOIN comporta_run_workers AS w ON w.run_id = r.run_id
"""
LIST_RUNS = Statement(f"{_RUNS} GROUP BY r.run_id ORDER BY r.created_at_us DESC, r.run_id LIMIT :count")
READ_RUN = Statement(f"{_RUNS} WHERE r.run_id = :run_id GROUP BY r.run_id")
FIND_RUN_IDS = Statement(
    "SELECT run_id FROM comporta_runs WHERE run_id LIKE :prefix OR name = :name ORDER BY run_id LIMIT 2"
)
LIST_WORKERS = Statement(
    f"""
    SELECT w.worker, w.started_at_us, {_IS_LIVE}, w.written, w.dead, w.without_rows, w.rate,
        count(l.position), min(l.position), max(l.position)
    FROM comporta_run_workers AS w
    LEFT JOIN comporta_run_lines AS l ON l.run_id = w.run_id AND l.owner = w.worker AND l.owner <> ''
    WHERE w.run_id = :run_id
    GROUP BY w.run_id, w.worker, w.started_at_us, w.lease_until_us, w.written, w.dead, w.without_rows, w.rate
    ORDER BY w.started_at_us, w.worker
    """
)
READ_DEAD_LETTERS = Statement(
    f"""
    SELECT position, letter FROM comporta_run_dead_letters
    WHERE {_SAME_RUN} AND position > CAST(:after AS BIGINT) ORDER BY position LIMIT :count
    """
)

# -- removal

DELETE_SOME_LINES = Statement(
    f"""
    DELETE FROM comporta_run_lines WHERE {_SAME_RUN} AND position IN (
        SELECT position FROM comporta_run_lines WHERE {_SAME_RUN} ORDER BY position LIMIT :count
    )
    RETURNING position
    """
)
DELETE_SOME_DEAD_LETTERS = Statement(
    f"""
    DELETE FROM comporta_run_dead_letters WHERE {_SAME_RUN} AND position IN (
        SELECT position FROM comporta_run_dead_letters WHERE {_SAME_RUN} ORDER BY position LIMIT :count
    )
    RETURNING position
    """
)
_TABLES = ("comporta_run_lines", "comporta_run_dead_letters", "comporta_run_workers", "comporta_runs")
DELETE_RUN = (LOCK_RUN, *(Statement(f"DELETE FROM {table} WHERE {_SAME_RUN}") for table in _TABLES))
FIND_OLD_RUNS = Statement(
    f"""
    SELECT run_id FROM comporta_runs
    WHERE finished_at_us IS NOT NULL AND finished_at_us < {NOW_US} - CAST(:kept_us AS BIGINT)
    ORDER BY finished_at_us LIMIT :count
    """
)
