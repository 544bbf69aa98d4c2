"""The SQL statements that maintain the cache's tables: evict and prune rows, count accesses and answers.

See ``sql.py`` for the macros and the order in which rows are locked.
"""

from __future__ import annotations

from functools import cache

from comporta.cache.migrations import LAST_USED
from comporta.cache.sql import PRIORITY
from comporta.database.base import Statement

_PRIORITY_COUNTED = PRIORITY
for _name, _column in (("last_accessed_at", "last_at"), ("access_count", "accesses"), ("saved", "saved")):
    _PRIORITY_COUNTED = _PRIORITY_COUNTED.replace(_name, f"counted.{_column}")

EVICT = Statement(
    f"""
    DELETE FROM search_results_cache WHERE user_id = :user_id AND id IN (
        SELECT id FROM search_results_cache WHERE user_id = :user_id AND id IN (
        SELECT id FROM search_results_cache WHERE user_id = :user_id
        ORDER BY params_hash = :protected DESC, has_value DESC,
            CASE {PRIORITY} WHEN 'hot' THEN 2 WHEN 'warm' THEN 1 ELSE 0 END DESC,
            COALESCE(last_accessed_at, fetched_at, created_at) DESC
        LIMIT 1000000000 OFFSET :keep
        ) FREE()
    )
    RETURNING id
    """
)

# The window is over the :limit least recently used rows; the totals are read from the same index.
EVICT_LEAST_RECENTLY_USED = Statement(
    f"""
    DELETE FROM search_results_cache WHERE id IN (
        SELECT id FROM search_results_cache WHERE id IN (
        SELECT ranked.id FROM (
            SELECT id, ROW_NUMBER() OVER oldest_first AS place,
                SUM(size_bytes) OVER oldest_first - size_bytes AS bytes_before
            FROM (
                SELECT id, size_bytes, {LAST_USED} AS used_at FROM search_results_cache
                ORDER BY {LAST_USED} LIMIT :limit
            ) AS oldest
            WINDOW oldest_first AS (ORDER BY used_at, id)
        ) AS ranked
        CROSS JOIN (
            SELECT COUNT(*) AS row_count, COALESCE(SUM(size_bytes), 0) AS byte_count
            FROM search_results_cache
        ) AS totals
        WHERE place <= row_count - :rows_max OR bytes_before < byte_count - :bytes_max
        ) FREE()
    )
    RETURNING id
    """
)

EVICT_FETCHES = Statement(
    """
    DELETE FROM search_fetches WHERE fetch_key IN (
        SELECT fetch_key FROM search_fetches
        WHERE (lease_until IS NULL OR lease_until <= AT(:now))
        AND (degraded_until IS NULL OR degraded_until <= AT(:now))
        ORDER BY last_attempt_at
        LIMIT (
            SELECT CASE WHEN COUNT(*) <= :rows_max THEN 0 WHEN COUNT(*) - :rows_max > :limit THEN :limit
                ELSE COUNT(*) - :rows_max END
            FROM search_fetches
        )
        FREE()
    )
    RETURNING fetch_key
    """
)

PRUNE_FETCHES = Statement(
    """
    DELETE FROM search_fetches WHERE fetch_key IN (
        SELECT fetch_key FROM search_fetches
        WHERE COALESCE(last_attempt_at, lease_until, AT(0)) <= AT(:now - :older_than)
        AND (lease_until IS NULL OR lease_until <= AT(:now - :older_than))
        AND (degraded_until IS NULL OR degraded_until <= AT(:now))
        LIMIT :limit FREE()
    )
    RETURNING fetch_key
    """
)

PRUNE_ROWS = Statement(
    """
    DELETE FROM search_results_cache WHERE id IN (
        SELECT id FROM search_results_cache
        WHERE COALESCE(last_accessed_at, last_attempt_at, fetched_at) <= AT(:now - :older_than)
        AND fetched_at <= AT(:now - :older_than) AND (degraded_until IS NULL OR degraded_until <= AT(:now))
        AND NOT saved
        LIMIT :limit FREE()
    )
    RETURNING id
    """
)


_HOUR = "CAST(ROUND(:now / 3600 - 0.5) AS BIGINT)"

ADD_ANSWERS = Statement(
    f"""
    INSERT INTO search_cache_answers (hour, hits, stale, misses) VALUES ({_HOUR}, :hits, :stale, :misses)
    ON CONFLICT (hour) DO UPDATE SET hits = search_cache_answers.hits + excluded.hits,
        stale = search_cache_answers.stale + excluded.stale,
        misses = search_cache_answers.misses + excluded.misses
    """
)

# Hours in the future were counted before the clock was set back.
PRUNE_ANSWERS = Statement(
    f"""
    DELETE FROM search_cache_answers WHERE hour IN (
        SELECT hour FROM search_cache_answers WHERE hour <= {_HOUR} - 24 OR hour > {_HOUR} + 1 FREE()
    )
    """
)

READ_ANSWERS = Statement(
    f"""
    SELECT CAST(COALESCE(SUM(hits), 0) AS BIGINT), CAST(COALESCE(SUM(stale), 0) AS BIGINT),
        CAST(COALESCE(SUM(misses), 0) AS BIGINT)
    FROM search_cache_answers WHERE hour > {_HOUR} - 24 AND hour <= {_HOUR} + 1
    """
)


@cache
def record_accesses(count: int) -> Statement:
    """Return the statement that adds accesses to ``count`` rows, and sets their priority.

    A count decays to zero over 24 hours without an access, so that it approximates the accesses of the last
    24 hours. Only rows that the statement has locked, in the order of their ids, are updated: rows inserted
    since then could cause a deadlock.
    """
    values = ", ".join(
        f"(CAST(:user_{n} AS TEXT), CAST(:hash_{n} AS TEXT), CAST(:accesses_{n} AS INTEGER),"
        f" CAST(:at_{n} AS DOUBLE PRECISION), CAST(:saved_{n} AS BOOLEAN))"
        for n in range(count)
    )
    elapsed = "added.at - UNIX(cached.last_accessed_at)"
    return Statement(
        f"""
        WITH added (user_id, params_hash, accesses, at, saved) AS (VALUES {values}),
        counted AS (
            SELECT cached.id AS id, COALESCE(added.saved, cached.saved) AS saved,
                CASE WHEN cached.last_accessed_at > AT(added.at) THEN cached.last_accessed_at
                    ELSE AT(added.at) END AS last_at,
                added.accesses + CASE
                    WHEN cached.last_accessed_at IS NULL OR {elapsed} >= 86400 THEN 0
                    WHEN {elapsed} <= 0 THEN cached.access_count
                    ELSE CAST(ROUND(cached.access_count * (1 - ({elapsed}) / 86400)) AS INTEGER)
                    END AS accesses
            FROM search_results_cache AS cached JOIN added
            ON cached.user_id = added.user_id AND cached.params_hash = added.params_hash
            ORDER BY cached.id LOCK()
        )
        UPDATE search_results_cache SET access_count = counted.accesses, last_accessed_at = counted.last_at,
            saved = counted.saved, priority = {_PRIORITY_COUNTED}
        FROM counted WHERE search_results_cache.id = counted.id
        """
    )
