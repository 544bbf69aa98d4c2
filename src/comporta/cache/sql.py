"""The SQL statements of the cache, with the macros of ``database/base.py``: one text for both databases.

A transaction that changes a key first changes its record in ``search_fetches``, and so waits there for any
other transaction on the same key. The rows in ``search_results_cache`` come after it. ``_CURRENT`` tells them
whether the change was accepted: a fetcher whose token is no longer the latest changes nothing.

All transactions on these tables take their locks in one order, so that no two wait for each other. A
deadlock costs PostgreSQL a second.

1. Records in ``search_fetches``, in the order of their keys.
2. Rows in ``search_results_cache``, in the order of their ids, all in one statement (``LOCK()``).
3. Tags, which only a transaction that has locked their row changes, and ``search_cache_answers``.

A later statement of the same transaction changes only what the transaction has locked, and rows and records
that no other transaction has locked (``FREE()``): a row that came into its scope since then, or a record that
may also be removed later. It never waits for them. ``tests/cache/test_lock_order.py`` holds every command to
this.
"""

from __future__ import annotations

from comporta.database.base import Statement

ROWS_IN_SCOPE = """
    search_results_cache.params_hash = :params_hash
    AND (CAST(:key AS TEXT) = CAST(:params_hash AS TEXT) OR search_results_cache.user_id = :user_id)
"""

_CURRENT = """
    EXISTS (
        SELECT 1 FROM search_fetches
        WHERE fetch_key = :key AND (CAST(:token AS BIGINT) IS NULL OR token = CAST(:token AS BIGINT))
    )
"""

# A record may be pruned and inserted again. Its first token is the time, and so later than any before it.
_FIRST_TOKEN = "CAST(:now * 1000 AS BIGINT)"  # noqa: S105 - SQL, not a secret

# A caller without a token did not claim the key, and leaves the lease of another worker untouched.
_LEASE_AFTER = "CASE WHEN CAST(:token AS BIGINT) IS NULL THEN search_fetches.lease_until ELSE NULL END"
_LATEST_TOKEN = "COALESCE(CAST(:token AS BIGINT), search_fetches.token)"  # noqa: S105 - as above
_NOT_LATE = "(CAST(:token AS BIGINT) IS NULL OR search_fetches.token <= CAST(:token AS BIGINT))"

# The rules of health.py: accesses count for 24 hours, and saved searches are never cold.
_ACCESSES = """
    CASE WHEN last_accessed_at IS NULL OR last_accessed_at <= AT(:now - 86400) THEN 0 ELSE access_count END
"""
PRIORITY = f"""
    CASE WHEN {_ACCESSES} >= CASE WHEN saved THEN 3 ELSE 10 END THEN 'hot'
    WHEN saved OR {_ACCESSES} >= 3 THEN 'warm' ELSE 'cold' END
"""

# A backoff that ends later than is possible was written before the clock was set back. The bound is 30
# minutes and one minute of tolerance: a transaction that waited for a record started before the one that
# changed it.
_BACKOFF = "CASE WHEN degraded_until <= AT(:now + 1860) THEN UNIX(degraded_until) END"

_SELECT = f"""
    SELECT user_id, params_hash, COALESCE(total_results, 0),
        COALESCE(UNIX(fetched_at), UNIX(created_at), 0.0), UNIX(last_success_at), UNIX(last_attempt_at),
        fail_streak, {_BACKOFF}, fetch_duration_ms, priority, TEXT(sources_json)
"""
_OF_USER = "FROM search_results_cache WHERE user_id = :user_id AND params_hash = :params_hash"

READ = Statement(
    f"""
    {_SELECT}, has_value, TEXT(search_params), TEXT(results), TEXT(coverage),
        COALESCE(UNIX(created_at), UNIX(fetched_at), 0.0), access_count, UNIX(last_accessed_at), :now
    {_OF_USER}
    """
)

# Every database hit reads these columns, and each column makes it slower.
SELECT_RESULT = f"{_SELECT}, TEXT(results), TEXT(coverage), has_value, :now"

READ_RESULT = Statement(f"{SELECT_RESULT} {_OF_USER}")

READ_SHARED_RESULT = Statement(
    f"""
    {SELECT_RESULT} FROM search_results_cache WHERE params_hash = :params_hash AND has_value
    ORDER BY fetched_at DESC LIMIT 1
    """
)

# Every failure is copied into the rows of its key. Operators and other programs may edit it there, so the
# rows decide. The record decides while no row has its last attempt, because all were removed, or because the
# snapshot of this statement is older than the record that it waited for.
_IS_COPIED = f"""
    EXISTS (
        SELECT 1 FROM search_results_cache
        WHERE {ROWS_IN_SCOPE} AND last_attempt_at = search_fetches.last_attempt_at
    )
"""
_DEGRADED_ROW = f"""
    SELECT 1 FROM search_results_cache
    WHERE {ROWS_IN_SCOPE} AND degraded_until > AT(:now) AND degraded_until <= AT(:now + 1860)
"""

READ_CLAIM = Statement(
    f"""
    SELECT COALESCE(token, 0), UNIX(lease_until), COALESCE(owner, ''),
        (
            SELECT MAX(until) FROM (
                SELECT {_BACKOFF} AS until FROM search_results_cache WHERE {ROWS_IN_SCOPE}
                UNION ALL
                SELECT {_BACKOFF} FROM search_fetches WHERE fetch_key = :key AND NOT {_IS_COPIED}
            ) AS known
        ),
        COALESCE(fail_streak, 0), UNIX(last_success_at), :now
    FROM (SELECT 1) AS one LEFT JOIN search_fetches ON fetch_key = :key
    """
)

# A lease that ends later than is possible was written before the clock was set back.
CLAIM = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, owner, lease_until)
    SELECT CAST(:key AS TEXT), {_FIRST_TOKEN}, CAST(:owner AS TEXT), AT(:now + :lease_seconds)
    WHERE :forced OR NOT EXISTS ({_DEGRADED_ROW})
    ON CONFLICT (fetch_key) DO UPDATE SET
        token = search_fetches.token + 1, owner = excluded.owner, lease_until = excluded.lease_until
    WHERE (
        search_fetches.lease_until IS NULL OR search_fetches.lease_until <= AT(:now)
        OR search_fetches.lease_until > AT(:now + :lease_seconds_max)
    )
    AND (
        :forced
        OR (
            search_fetches.degraded_until IS NULL OR search_fetches.degraded_until <= AT(:now)
            OR search_fetches.degraded_until > AT(:now + 1860) OR {_IS_COPIED}
        )
        AND (
            search_fetches.last_success_at IS NULL
            OR search_fetches.last_success_at <= AT(:now - :not_within)
            OR search_fetches.last_success_at > AT(:now + 60)
        )
    )
    RETURNING token
    """
)

RENEW = Statement(
    """
    UPDATE search_fetches SET lease_until = AT(:now + :lease_seconds)
    WHERE fetch_key = :key AND token = :token AND lease_until IS NOT NULL RETURNING token
    """
)

RELEASE = Statement("UPDATE search_fetches SET lease_until = NULL WHERE fetch_key = :key AND token = :token")

RECORD_SUCCESS = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, last_attempt_at, last_success_at)
    VALUES (:key, COALESCE(CAST(:token AS BIGINT), {_FIRST_TOKEN}), AT(:now), AT(:now))
    ON CONFLICT (fetch_key) DO UPDATE SET
        token = {_LATEST_TOKEN}, lease_until = {_LEASE_AFTER}, fail_streak = 0, degraded_until = NULL,
        last_attempt_at = excluded.last_attempt_at, last_success_at = excluded.last_success_at
    WHERE {_NOT_LATE}
    RETURNING token
    """
)

LOCK_KEY = Statement("SELECT token FROM search_fetches WHERE fetch_key = :key LOCK()")

# A row of another user whose fetched_at is missing or in the future would be read instead of the row just
# stored.
_IS_AHEAD = "(fetched_at IS NULL OR fetched_at > AT(:now + 60))"
_NEEDS_RESET = f"(fail_streak > 0 OR degraded_until IS NOT NULL OR due_at IS NOT NULL OR {_IS_AHEAD})"

LOCK_ROWS_TO_RESET = Statement(
    f"""
    SELECT id FROM search_results_cache
    WHERE {ROWS_IN_SCOPE} AND (user_id = :user_id OR {_NEEDS_RESET}) ORDER BY id LOCK()
    """
)

STORE_ROW = Statement(
    f"""
    INSERT INTO search_results_cache (
        id, user_id, params_hash, search_params, results, total_results, sources_json, fetched_at, created_at,
        last_success_at, last_attempt_at, fail_streak, degraded_until, coverage, fetch_duration_ms, has_value,
        size_bytes
    )
    SELECT NEW_ID(), :user_id, :params_hash, JSON(:search_params), JSON(:results),
        CAST(:total_results AS INTEGER), JSON(:sources), AT(:now - :age), AT(:now), AT(:now), AT(:now), 0,
        NULL, JSON(:coverage), CAST(:fetch_duration_ms AS INTEGER), TRUE, CAST(:size_bytes AS INTEGER)
    WHERE {_CURRENT}
    ON CONFLICT (user_id, params_hash) DO UPDATE SET
        search_params = excluded.search_params, results = excluded.results,
        total_results = excluded.total_results, sources_json = excluded.sources_json,
        fetched_at = excluded.fetched_at, last_success_at = excluded.last_success_at,
        last_attempt_at = excluded.last_attempt_at, fail_streak = 0, degraded_until = NULL,
        coverage = excluded.coverage, fetch_duration_ms = excluded.fetch_duration_ms, has_value = TRUE,
        due_at = NULL, size_bytes = excluded.size_bytes
    """
)

# Only rows that differ: an update rewrites the whole row, body included. A row that an operator marked only
# after LOCK_ROWS_TO_RESET, and that another transaction has locked, stays as it is.
RESET_ROWS = Statement(
    f"""
    UPDATE search_results_cache
    SET fail_streak = 0, degraded_until = NULL, due_at = NULL, last_attempt_at = AT(:now),
        fetched_at = CASE WHEN {_IS_AHEAD} THEN AT(0) ELSE fetched_at END
    WHERE {_CURRENT} AND id IN (
        SELECT id FROM search_results_cache
        WHERE {ROWS_IN_SCOPE} AND user_id <> :user_id AND {_NEEDS_RESET} FREE()
    )
    """
)

_BACKOFF_SECONDS = "WHEN 0 THEN 60 WHEN 1 THEN 300 WHEN 2 THEN 900 ELSE 1800"

# The streak is the longer of the record's, which other workers may have changed meanwhile, and the rows'.
_STREAK_BEFORE = """
    CASE WHEN search_fetches.fail_streak >= excluded.fail_streak THEN search_fetches.fail_streak
    ELSE excluded.fail_streak - 1 END
"""

REMOVE_TAGS = Statement(
    f"DELETE FROM search_cache_tags WHERE user_id = :user_id AND params_hash = :params_hash AND {_CURRENT}"
)

INSERT_TAGS = Statement(
    f"""
    INSERT INTO search_cache_tags (tag, user_id, params_hash)
    SELECT given.item, user_id, params_hash FROM search_results_cache CROSS JOIN EACH(:tags) AS given
    WHERE user_id = :user_id AND params_hash = :params_hash AND {_CURRENT}
    ON CONFLICT (tag, user_id, params_hash) DO NOTHING
    """
)

RECORD_FAILURE = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, last_attempt_at, fail_streak, degraded_until)
    SELECT CAST(:key AS TEXT), COALESCE(CAST(:token AS BIGINT), {_FIRST_TOKEN}), AT(:now), streak + 1,
        AT(:now + CASE streak {_BACKOFF_SECONDS} END)
    FROM (
        SELECT COALESCE(MAX(fail_streak), 0) AS streak FROM search_results_cache WHERE {ROWS_IN_SCOPE}
    ) AS known WHERE TRUE
    ON CONFLICT (fetch_key) DO UPDATE SET
        token = {_LATEST_TOKEN}, lease_until = {_LEASE_AFTER}, last_attempt_at = excluded.last_attempt_at,
        fail_streak = {_STREAK_BEFORE} + 1,
        degraded_until = AT(:now + CASE {_STREAK_BEFORE} {_BACKOFF_SECONDS} END)
    WHERE {_NOT_LATE}
    """
)

INSERT_EMPTY_ROW = Statement(
    f"""
    INSERT INTO search_results_cache (
        id, user_id, params_hash, search_params, results, total_results, sources_json, fetched_at, created_at,
        has_value, size_bytes
    )
    SELECT NEW_ID(), :user_id, :params_hash, JSON(:search_params), JSON('null'), 0, JSON('[]'), AT(:now),
        AT(:now), FALSE, CAST(:size_bytes AS INTEGER)
    WHERE {_CURRENT}
    ON CONFLICT (user_id, params_hash) DO NOTHING
    """
)

COPY_FAILURE_TO_ROWS = Statement(
    f"""
    UPDATE search_results_cache
    SET fail_streak = fetches.fail_streak, degraded_until = fetches.degraded_until,
        last_attempt_at = fetches.last_attempt_at, due_at = NULL
    FROM search_fetches AS fetches
    WHERE fetches.fetch_key = :key AND {_CURRENT} AND id IN (
        SELECT id FROM search_results_cache WHERE {ROWS_IN_SCOPE} ORDER BY id LOCK()
    )
    """
)

READ_HEALTH = Statement(
    "SELECT fail_streak, UNIX(degraded_until), :now FROM search_fetches WHERE fetch_key = :key"
)

REMOVE = Statement(
    "DELETE FROM search_results_cache WHERE user_id = :user_id AND params_hash = :params_hash RETURNING id"
)

# A key without rows is reset. Its token and lease stay, for a worker that fetches it at this moment.
RESET_KEY = Statement(
    f"""
    UPDATE search_fetches SET fail_streak = 0, degraded_until = NULL, last_success_at = NULL
    WHERE fetch_key IN (SELECT fetch_key FROM search_fetches WHERE fetch_key = :key FREE())
    AND NOT EXISTS (SELECT 1 FROM search_results_cache WHERE {ROWS_IN_SCOPE})
    """
)

_MARKED = """
    params_hash = :params_hash AND (CAST(:user_id AS TEXT) IS NULL OR user_id = CAST(:user_id AS TEXT))
"""
MARK_DUE = Statement(
    f"""
    UPDATE search_results_cache SET due_at = AT(:now)
    WHERE id IN (SELECT id FROM search_results_cache WHERE {_MARKED} ORDER BY id LOCK()) RETURNING id
    """
)

# A row that an operator marked is due even in backoff; hot rows are due after it.
LIST_DUE = Statement(
    f"""
    SELECT user_id, params_hash, TEXT(search_params), UNIX(fetched_at), due_at IS NOT NULL, :now
    FROM search_results_cache
    WHERE due_at <= AT(:now)
        OR last_accessed_at > AT(:now - 86400) AND has_value AND fetched_at <= AT(:now - :age)
        AND {PRIORITY} = 'hot'
        AND (degraded_until IS NULL OR degraded_until <= AT(:now) OR degraded_until > AT(:now + 1860))
    ORDER BY due_at IS NULL, fetched_at LIMIT :limit
    """
)

_LIST = f"""
    SELECT user_id, params_hash, total_results, has_value, UNIX(fetched_at), UNIX(last_success_at),
        UNIX(last_attempt_at), fail_streak, UNIX(degraded_until), fetch_duration_ms, {PRIORITY},
        access_count, UNIX(last_accessed_at), UNIX(due_at), :now
    FROM search_results_cache
    WHERE (CAST(:user_id AS TEXT) IS NULL OR user_id = CAST(:user_id AS TEXT))
    AND (CAST(:params_hash AS TEXT) IS NULL OR params_hash = CAST(:params_hash AS TEXT))
"""
LIST = Statement(f"{_LIST} ORDER BY fetched_at DESC LIMIT :limit")
LIST_DEGRADED = Statement(
    f"{_LIST} AND degraded_until > AT(:now) ORDER BY degraded_until DESC, fetched_at DESC LIMIT :limit"
)

READ_STATS = Statement(
    f"""
    SELECT COUNT(*), COUNT(CASE WHEN has_value THEN 1 END), CAST(COALESCE(AVG(fail_streak), 0) AS REAL),
        MAX(fail_streak),
        COUNT(CASE WHEN {PRIORITY} = 'hot' THEN 1 END), COUNT(CASE WHEN {PRIORITY} = 'warm' THEN 1 END),
        COUNT(CASE WHEN has_value AND fetched_at > AT(:now - :fresh) THEN 1 END),
        COUNT(CASE WHEN has_value AND fetched_at > AT(:now - :stale) THEN 1 END),
        :now
    FROM search_results_cache
    """
)

# Rows with the same parameters are one key, however many users have them.
LIST_TOP = Statement(
    f"""
    SELECT params_hash, CAST(SUM({_ACCESSES}) AS INTEGER), COUNT(*), MAX(UNIX(fetched_at)),
        MAX(fail_streak), :now
    FROM search_results_cache GROUP BY params_hash
    ORDER BY 2 DESC, 4 DESC, 1 LIMIT :limit
    """
)

CLEAR = Statement(
    """
    DELETE FROM search_results_cache WHERE id IN (
        SELECT id FROM search_results_cache ORDER BY id LIMIT :limit LOCK()
    )
    RETURNING params_hash
    """
)

CLEAR_FETCHES = Statement(
    """
    DELETE FROM search_fetches WHERE fetch_key IN (
        SELECT fetch_key FROM search_fetches WHERE lease_until IS NULL OR lease_until <= AT(:now) FREE()
    )
    AND NOT EXISTS (SELECT 1 FROM search_results_cache)
    """
)

COUNT_DEGRADED = Statement("SELECT COUNT(*) FROM search_results_cache WHERE degraded_until > AT(:now)")

COUNT_FETCHES = Statement("SELECT COUNT(*) FROM search_fetches WHERE lease_until > AT(:now)")
