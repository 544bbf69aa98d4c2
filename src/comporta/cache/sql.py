"""The SQL statements of the cache, with the macros of ``database/base.py``: one text for both databases.

A transaction that changes a key first changes its record in ``search_fetches``, and so waits there for any
other transaction on the same key. The rows in ``search_results_cache`` come after it. ``_CURRENT`` tells them
whether the change was accepted: a fetcher whose token is no longer the latest changes nothing.

A statement that changes several rows first locks them in the order of their ids. A statement that could as
well remove a row later skips locked rows. Both avoid deadlocks, which cost PostgreSQL a second each.
"""

from __future__ import annotations

from functools import cache

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
_PRIORITY = f"""
    CASE WHEN {_ACCESSES} >= CASE WHEN saved THEN 3 ELSE 10 END THEN 'hot'
    WHEN saved OR {_ACCESSES} >= 3 THEN 'warm' ELSE 'cold' END
"""
_PRIORITY_COUNTED = _PRIORITY
for _name, _column in (("last_accessed_at", "last_at"), ("access_count", "accesses"), ("saved", "saved")):
    _PRIORITY_COUNTED = _PRIORITY_COUNTED.replace(_name, f"counted.{_column}")

# A backoff that ends later than any can was written before the clock was set back. The bound is 30 minutes
# and one of tolerance: a transaction that waited for a record started before the one that changed it.
_BACKOFF = "CASE WHEN degraded_until <= AT(:now + 1860) THEN UNIX(degraded_until) END"

_SELECT_ROW = f"""
    SELECT user_id, params_hash, COALESCE(total_results, 0),
        COALESCE(UNIX(fetched_at), UNIX(created_at), 0.0), UNIX(last_success_at), UNIX(last_attempt_at),
        fail_streak, {_BACKOFF}, fetch_duration_ms, priority, TEXT(sources_json), has_value,
        TEXT(search_params), TEXT(results), TEXT(coverage),
        COALESCE(UNIX(created_at), UNIX(fetched_at), 0.0), access_count, UNIX(last_accessed_at), :now
    FROM search_results_cache
"""

READ = Statement(f"{_SELECT_ROW} WHERE user_id = :user_id AND params_hash = :params_hash")

READ_SHARED = Statement(
    f"{_SELECT_ROW} WHERE params_hash = :params_hash AND has_value ORDER BY fetched_at DESC LIMIT 1"
)

READ_CLAIM = Statement(
    f"""
    SELECT token, UNIX(lease_until), owner, {_BACKOFF}, fail_streak, UNIX(last_success_at), :now
    FROM search_fetches WHERE fetch_key = :key
    """
)

# A lease that ends later than any can was written before the clock was set back.
CLAIM = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, owner, lease_until)
    VALUES (:key, {_FIRST_TOKEN}, :owner, AT(:now + :lease_seconds))
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
            OR search_fetches.degraded_until > AT(:now + 1860)
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

LOCK_ROWS = Statement(f"SELECT id FROM search_results_cache WHERE {ROWS_IN_SCOPE} ORDER BY id LOCK()")

_NEEDS_RESET = "(fail_streak > 0 OR degraded_until IS NOT NULL OR due_at IS NOT NULL)"

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
        last_success_at, last_attempt_at, fail_streak, degraded_until, coverage, fetch_duration_ms, has_value
    )
    SELECT NEW_ID(), :user_id, :params_hash, JSON(:search_params), JSON(:results),
        CAST(:total_results AS INTEGER), JSON(:sources), AT(:now - :age), AT(:now), AT(:now), AT(:now), 0,
        NULL, JSON(:coverage), CAST(:fetch_duration_ms AS INTEGER), TRUE
    WHERE {_CURRENT}
    ON CONFLICT (user_id, params_hash) DO UPDATE SET
        search_params = excluded.search_params, results = excluded.results,
        total_results = excluded.total_results, sources_json = excluded.sources_json,
        fetched_at = excluded.fetched_at, last_success_at = excluded.last_success_at,
        last_attempt_at = excluded.last_attempt_at, fail_streak = 0, degraded_until = NULL,
        coverage = excluded.coverage, fetch_duration_ms = excluded.fetch_duration_ms, has_value = TRUE,
        due_at = NULL
    """
)

# Only rows that differ: an update rewrites the whole row, body included.
RESET_ROWS = Statement(
    f"""
    UPDATE search_results_cache
    SET fail_streak = 0, degraded_until = NULL, due_at = NULL, last_attempt_at = AT(:now)
    WHERE {ROWS_IN_SCOPE} AND user_id <> :user_id AND {_CURRENT}
    AND {_NEEDS_RESET}
    """
)

RECORD_FAILURE = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, last_attempt_at, fail_streak, degraded_until)
    VALUES (:key, COALESCE(CAST(:token AS BIGINT), {_FIRST_TOKEN}), AT(:now), 1, AT(:now + 60))
    ON CONFLICT (fetch_key) DO UPDATE SET
        token = {_LATEST_TOKEN}, lease_until = {_LEASE_AFTER}, last_attempt_at = excluded.last_attempt_at,
        fail_streak = search_fetches.fail_streak + 1,
        degraded_until = AT(:now + CASE search_fetches.fail_streak
            WHEN 0 THEN 60 WHEN 1 THEN 300 WHEN 2 THEN 900 ELSE 1800 END)
    WHERE {_NOT_LATE}
    """
)

INSERT_EMPTY_ROW = Statement(
    f"""
    INSERT INTO search_results_cache (
        id, user_id, params_hash, search_params, results, total_results, sources_json, fetched_at, created_at,
        has_value
    )
    SELECT NEW_ID(), :user_id, :params_hash, JSON(:search_params), JSON('null'), 0, JSON('[]'), AT(:now),
        AT(:now), FALSE
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
    WHERE fetches.fetch_key = :key AND {ROWS_IN_SCOPE} AND {_CURRENT}
    """
)

READ_HEALTH = Statement(
    "SELECT fail_streak, UNIX(degraded_until), :now FROM search_fetches WHERE fetch_key = :key"
)

EVICT = Statement(
    f"""
    DELETE FROM search_results_cache WHERE user_id = :user_id AND id IN (
        SELECT id FROM search_results_cache WHERE user_id = :user_id AND id IN (
        SELECT id FROM search_results_cache WHERE user_id = :user_id
        ORDER BY params_hash = :protected DESC, has_value DESC,
            CASE {_PRIORITY} WHEN 'hot' THEN 2 WHEN 'warm' THEN 1 ELSE 0 END DESC,
            COALESCE(last_accessed_at, fetched_at, created_at) DESC
        LIMIT 1000000000 OFFSET :keep
        ) FREE()
    )
    RETURNING id
    """
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
        AND {_PRIORITY} = 'hot'
        AND (degraded_until IS NULL OR degraded_until <= AT(:now) OR degraded_until > AT(:now + 1860))
    ORDER BY due_at IS NULL, fetched_at LIMIT :limit
    """
)

_LIST = f"""
    SELECT user_id, params_hash, total_results, has_value, UNIX(fetched_at), UNIX(last_success_at),
        UNIX(last_attempt_at), fail_streak, UNIX(degraded_until), fetch_duration_ms, {_PRIORITY},
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
        COUNT(CASE WHEN {_PRIORITY} = 'hot' THEN 1 END), COUNT(CASE WHEN {_PRIORITY} = 'warm' THEN 1 END),
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
    DELETE FROM search_fetches WHERE (lease_until IS NULL OR lease_until <= AT(:now))
    AND NOT EXISTS (SELECT 1 FROM search_results_cache)
    """
)

COUNT_DEGRADED = Statement("SELECT COUNT(*) FROM search_results_cache WHERE degraded_until > AT(:now)")

COUNT_FETCHES = Statement("SELECT COUNT(*) FROM search_fetches WHERE lease_until > AT(:now)")

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
