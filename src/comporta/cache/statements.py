"""The SQL of the cache, in the words of ``database/base.py``: one text for both databases.

Whatever changes a key begins with its record in ``search_fetches`` and so waits there for whoever changes the
same key; the rows come after it and follow what the record says. ``_CURRENT`` is how they see whether the
change was accepted: a fetcher whose token is no longer the latest changes nothing.

Whatever changes several rows locks them in the order of their ids first, and what may as well be removed
later leaves out those in use: each deadlock costs PostgreSQL a second.
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

# Records may be forgotten and made anew: a token that begins with the time is later than all before it.
_FIRST = "CAST(:now * 1000 AS BIGINT)"

# Whoever reports without a token reports for nobody's lease.
_LEASE_AFTER = "CASE WHEN CAST(:token AS BIGINT) IS NULL THEN search_fetches.lease_until ELSE NULL END"
_LATEST = "COALESCE(CAST(:token AS BIGINT), search_fetches.token)"
_NOT_LATE = "(CAST(:token AS BIGINT) IS NULL OR search_fetches.token <= CAST(:token AS BIGINT))"

# See health.py: what is not accessed for a day counts for nothing, and saved searches are never cold.
_ACCESSES = """
    CASE WHEN last_accessed_at IS NULL OR last_accessed_at <= AT(:now - 86400) THEN 0 ELSE access_count END
"""
_PRIORITY = f"""
    CASE WHEN {_ACCESSES} >= CASE WHEN saved THEN 3 ELSE 10 END THEN 'hot'
    WHEN saved OR {_ACCESSES} >= 3 THEN 'warm' ELSE 'cold' END
"""
_PRIORITY_COUNTED = _PRIORITY
for _name, _there in (("last_accessed_at", "last_at"), ("access_count", "accesses"), ("saved", "saved")):
    _PRIORITY_COUNTED = _PRIORITY_COUNTED.replace(_name, f"counted.{_there}")

# What lasts longer than anything may is from before somebody set the clock back. Not to the second: who
# waited for a record began before the one who changed it.
_BACKOFF = "CASE WHEN degraded_until <= AT(:now + 1860) THEN UNIX(degraded_until) END"

_ENTRY = f"""
    SELECT user_id, params_hash, COALESCE(total_results, 0),
        COALESCE(UNIX(fetched_at), UNIX(created_at), 0.0), UNIX(last_success_at), UNIX(last_attempt_at),
        fail_streak, {_BACKOFF}, fetch_duration_ms, priority, TEXT(sources_json), has_value,
        TEXT(search_params), TEXT(results), TEXT(coverage),
        COALESCE(UNIX(created_at), UNIX(fetched_at), 0.0), access_count, UNIX(last_accessed_at), :now
    FROM search_results_cache
"""

READ = Statement(f"{_ENTRY} WHERE user_id = :user_id AND params_hash = :params_hash")

READ_SHARED = Statement(
    f"{_ENTRY} WHERE params_hash = :params_hash AND has_value ORDER BY fetched_at DESC LIMIT 1"
)

LOOK = Statement(
    f"""
    SELECT token, UNIX(lease_until), owner, {_BACKOFF}, fail_streak, UNIX(last_success_at), :now
    FROM search_fetches WHERE fetch_key = :key
    """
)

# A lease that ends later than any may is from before somebody set the clock back.
CLAIM = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, owner, lease_until)
    VALUES (:key, {_FIRST}, :owner, AT(:now + :lease_seconds))
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

SUCCEEDED = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, last_attempt_at, last_success_at)
    VALUES (:key, COALESCE(CAST(:token AS BIGINT), {_FIRST}), AT(:now), AT(:now))
    ON CONFLICT (fetch_key) DO UPDATE SET
        token = {_LATEST}, lease_until = {_LEASE_AFTER}, fail_streak = 0, degraded_until = NULL,
        last_attempt_at = excluded.last_attempt_at, last_success_at = excluded.last_success_at
    WHERE {_NOT_LATE}
    RETURNING token
    """
)

LOCK_KEY = Statement("SELECT token FROM search_fetches WHERE fetch_key = :key LOCK()")

LOCK_ROWS = Statement(f"SELECT id FROM search_results_cache WHERE {ROWS_IN_SCOPE} ORDER BY id LOCK()")

_UNWELL = "(fail_streak > 0 OR degraded_until IS NOT NULL OR due_at IS NOT NULL)"

LOCK_UNWELL = Statement(
    f"""
    SELECT id FROM search_results_cache
    WHERE {ROWS_IN_SCOPE} AND (user_id = :user_id OR {_UNWELL}) ORDER BY id LOCK()
    """
)

KEEP = Statement(
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

# Only those that say otherwise: the others would be written for nothing, body and all.
HEALED = Statement(
    f"""
    UPDATE search_results_cache
    SET fail_streak = 0, degraded_until = NULL, due_at = NULL, last_attempt_at = AT(:now)
    WHERE {ROWS_IN_SCOPE} AND user_id <> :user_id AND {_CURRENT}
    AND {_UNWELL}
    """
)

FAILED = Statement(
    f"""
    INSERT INTO search_fetches (fetch_key, token, last_attempt_at, fail_streak, degraded_until)
    VALUES (:key, COALESCE(CAST(:token AS BIGINT), {_FIRST}), AT(:now), 1, AT(:now + 60))
    ON CONFLICT (fetch_key) DO UPDATE SET
        token = {_LATEST}, lease_until = {_LEASE_AFTER}, last_attempt_at = excluded.last_attempt_at,
        fail_streak = search_fetches.fail_streak + 1,
        degraded_until = AT(:now + CASE search_fetches.fail_streak
            WHEN 0 THEN 60 WHEN 1 THEN 300 WHEN 2 THEN 900 ELSE 1800 END)
    WHERE {_NOT_LATE}
    """
)

REMEMBER = Statement(
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

HURT = Statement(
    f"""
    UPDATE search_results_cache
    SET fail_streak = known.fail_streak, degraded_until = known.degraded_until,
        last_attempt_at = known.last_attempt_at, due_at = NULL
    FROM search_fetches AS known
    WHERE known.fetch_key = :key AND {ROWS_IN_SCOPE} AND {_CURRENT}
    """
)

HEALTH = Statement(
    "SELECT fail_streak, UNIX(degraded_until), :now FROM search_fetches WHERE fetch_key = :key"
)

EVICT = Statement(
    f"""
    DELETE FROM search_results_cache WHERE user_id = :user_id AND id IN (
        SELECT id FROM search_results_cache WHERE user_id = :user_id AND id IN (
        SELECT id FROM search_results_cache WHERE user_id = :user_id
        ORDER BY params_hash = :spared DESC, has_value DESC,
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

# A key without rows starts anew; its token and its lease stay, for whoever fetches at this moment.
START_ANEW = Statement(
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

# What an operator asked for is due whatever failed before; the rest waits until its backoff is over.
DUE = Statement(
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

_LISTED = f"""
    SELECT user_id, params_hash, total_results, has_value, UNIX(fetched_at), UNIX(last_success_at),
        UNIX(last_attempt_at), fail_streak, UNIX(degraded_until), fetch_duration_ms, {_PRIORITY},
        access_count, UNIX(last_accessed_at), UNIX(due_at), :now
    FROM search_results_cache
    WHERE (CAST(:user_id AS TEXT) IS NULL OR user_id = CAST(:user_id AS TEXT))
    AND (CAST(:params_hash AS TEXT) IS NULL OR params_hash = CAST(:params_hash AS TEXT))
"""
LIST = Statement(f"{_LISTED} ORDER BY fetched_at DESC LIMIT :limit")
LIST_DEGRADED = Statement(
    f"{_LISTED} AND degraded_until > AT(:now) ORDER BY degraded_until DESC, fetched_at DESC LIMIT :limit"
)

FIGURES = Statement(
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

# Whatever is asked for with the same parameters is one key, however many users have it.
TOP = Statement(
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

DEGRADED = Statement("SELECT COUNT(*) FROM search_results_cache WHERE degraded_until > AT(:now)")

FETCHING = Statement("SELECT COUNT(*) FROM search_fetches WHERE lease_until > AT(:now)")

FORGET_FETCHES = Statement(
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

FORGET_ROWS = Statement(
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

COUNT_ANSWERS = Statement(
    f"""
    INSERT INTO search_cache_answers (hour, hits, stale, misses) VALUES ({_HOUR}, :hits, :stale, :misses)
    ON CONFLICT (hour) DO UPDATE SET hits = search_cache_answers.hits + excluded.hits,
        stale = search_cache_answers.stale + excluded.stale,
        misses = search_cache_answers.misses + excluded.misses
    """
)

# A clock that was set back leaves hours that are still to come.
FORGET_ANSWERS = Statement(
    f"""
    DELETE FROM search_cache_answers WHERE hour IN (
        SELECT hour FROM search_cache_answers WHERE hour <= {_HOUR} - 24 OR hour > {_HOUR} + 1 FREE()
    )
    """
)

ANSWERS = Statement(
    f"""
    SELECT CAST(COALESCE(SUM(hits), 0) AS BIGINT), CAST(COALESCE(SUM(stale), 0) AS BIGINT),
        CAST(COALESCE(SUM(misses), 0) AS BIGINT)
    FROM search_cache_answers WHERE hour > {_HOUR} - 24 AND hour <= {_HOUR} + 1
    """
)


@cache
def touches(count: int) -> Statement:
    """Return what counts accesses to so many rows, and draws the conclusion.

    A count fades within 24 hours in which nobody comes, so that it stays near the number of accesses in them.
    Only rows that were locked, in their order, are written: others may have come since.
    """
    values = ", ".join(
        f"(CAST(:user_{n} AS TEXT), CAST(:hash_{n} AS TEXT), CAST(:accesses_{n} AS INTEGER),"
        f" CAST(:at_{n} AS DOUBLE PRECISION), CAST(:saved_{n} AS BOOLEAN))"
        for n in range(count)
    )
    passed = "told.at - UNIX(kept.last_accessed_at)"
    return Statement(
        f"""
        WITH told (user_id, params_hash, accesses, at, saved) AS (VALUES {values}),
        counted AS (
            SELECT kept.id AS id, COALESCE(told.saved, kept.saved) AS saved,
                CASE WHEN kept.last_accessed_at > AT(told.at) THEN kept.last_accessed_at
                    ELSE AT(told.at) END AS last_at,
                told.accesses + CASE
                    WHEN kept.last_accessed_at IS NULL OR {passed} >= 86400 THEN 0
                    WHEN {passed} <= 0 THEN kept.access_count
                    ELSE CAST(ROUND(kept.access_count * (1 - ({passed}) / 86400)) AS INTEGER) END AS accesses
            FROM search_results_cache AS kept JOIN told
            ON kept.user_id = told.user_id AND kept.params_hash = told.params_hash
            ORDER BY kept.id LOCK()
        )
        UPDATE search_results_cache SET access_count = counted.accesses, last_accessed_at = counted.last_at,
            saved = counted.saved, priority = {_PRIORITY_COUNTED}
        FROM counted WHERE search_results_cache.id = counted.id
        """
    )
