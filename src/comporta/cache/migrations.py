"""The migrations of the cache's tables.

The first one creates the table of the service that this cache was first built for, unless it exists: an
existing PostgreSQL table is adopted with all its rows. Timestamps are ``timestamptz`` on PostgreSQL and Unix
seconds on SQLite, which has no type for them.

The fourth migration changes three types on PostgreSQL. ``results`` and ``search_params`` become ``json``
instead of ``jsonb``: still readable and still validated, but stored as the text that was written, while
``jsonb`` parses every body when it is written and formats it again for every hit. ``user_id`` becomes text,
because the service decides what a user id looks like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from comporta.database.migrations import Migration

_TIMESTAMP_TYPES = {"sqlite": "REAL", "postgresql": "TIMESTAMPTZ"}
_NOW_IN_SQLITE = "((julianday('now') - 2440587.5) * 86400.0)"


def _add_columns(dialect: str, *columns: str) -> Iterator[str]:
    """Return statements that add columns; SQLite adds one at a time, and has no IF NOT EXISTS for them."""
    if_new = "IF NOT EXISTS " if dialect == "postgresql" else ""
    for column in columns:
        text = column.replace("TIMESTAMP", _TIMESTAMP_TYPES[dialect])
        if dialect == "sqlite":
            text = text.replace("JSONB", "TEXT")
        yield f"ALTER TABLE search_results_cache ADD COLUMN {if_new}{text}"


def _migration(number: int, name: str, columns: tuple[str, ...], *rest: str) -> Migration:
    """Return a migration whose statements differ between the databases only in their types."""
    texts = {
        dialect: (
            *_add_columns(dialect, *columns),
            *(text.replace("TIMESTAMP", timestamp_type) for text in rest),
        )
        for dialect, timestamp_type in _TIMESTAMP_TYPES.items()
    }
    return Migration(number, name, texts["sqlite"], texts["postgresql"])


_RESULTS = Migration(
    1,
    "the results of searches",
    (
        f"""
        CREATE TABLE IF NOT EXISTS search_results_cache (
            id TEXT PRIMARY KEY NOT NULL DEFAULT (lower(hex(randomblob(16)))),
            user_id TEXT NOT NULL,
            params_hash TEXT NOT NULL,
            search_params TEXT NOT NULL,
            results TEXT NOT NULL,
            total_results INTEGER DEFAULT 0,
            sources_json TEXT DEFAULT '["pncp"]',
            fetched_at REAL DEFAULT {_NOW_IN_SQLITE},
            created_at REAL DEFAULT {_NOW_IN_SQLITE},
            UNIQUE (user_id, params_hash)
        )
        """,
    ),
    (
        """
        CREATE TABLE IF NOT EXISTS search_results_cache (
            id UUID PRIMARY KEY DEFAULT gen_random_uuid(),
            user_id UUID NOT NULL,
            params_hash TEXT NOT NULL,
            search_params JSONB NOT NULL,
            results JSONB NOT NULL,
            total_results INTEGER DEFAULT 0,
            sources_json JSONB DEFAULT '["pncp"]',
            fetched_at TIMESTAMPTZ DEFAULT now(),
            created_at TIMESTAMPTZ DEFAULT now(),
            UNIQUE (user_id, params_hash)
        )
        """,
    ),
)

_HEALTH = _migration(
    2,
    "the health of every key",
    (
        "last_success_at TIMESTAMP",
        "last_attempt_at TIMESTAMP",
        "fail_streak INTEGER NOT NULL DEFAULT 0",
        "degraded_until TIMESTAMP",
        "coverage JSONB",
        "fetch_duration_ms INTEGER",
    ),
    "CREATE INDEX IF NOT EXISTS idx_search_cache_degraded ON search_results_cache (degraded_until)"
    " WHERE degraded_until IS NOT NULL",
)

_ACCESSES = _migration(
    3,
    "how much a key is used",
    ("priority TEXT", "access_count INTEGER NOT NULL DEFAULT 0", "last_accessed_at TIMESTAMP"),
    "CREATE INDEX IF NOT EXISTS idx_search_cache_accessed ON search_results_cache (last_accessed_at)"
    " WHERE last_accessed_at IS NOT NULL",
)

_TYPES = """
    ALTER TABLE search_results_cache
        ALTER COLUMN user_id TYPE text,
        ALTER COLUMN search_params TYPE json,
        ALTER COLUMN results TYPE json
"""

_FETCHES = _migration(
    4,
    "who fetches",
    (
        "has_value BOOLEAN NOT NULL DEFAULT TRUE",
        "saved BOOLEAN NOT NULL DEFAULT FALSE",
        "due_at TIMESTAMP",
    ),
    "CREATE INDEX IF NOT EXISTS idx_search_cache_due ON search_results_cache (due_at)"
    " WHERE due_at IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_search_cache_params ON search_results_cache (params_hash, fetched_at)",
    """
    CREATE TABLE search_fetches (
        fetch_key TEXT PRIMARY KEY NOT NULL,
        token BIGINT NOT NULL,
        owner TEXT NOT NULL DEFAULT '',
        lease_until TIMESTAMP,
        last_attempt_at TIMESTAMP,
        last_success_at TIMESTAMP,
        fail_streak INTEGER NOT NULL DEFAULT 0,
        degraded_until TIMESTAMP
    )
    """,
    """
    INSERT INTO search_fetches
        (fetch_key, token, last_attempt_at, last_success_at, fail_streak, degraded_until)
    SELECT params_hash, 0, max(last_attempt_at), max(last_success_at), max(fail_streak), max(degraded_until)
    FROM search_results_cache WHERE last_attempt_at IS NOT NULL GROUP BY params_hash
    """,
)

_ANSWERS = _migration(
    5,
    "how the fleet answered, by the hour",
    (),
    """
    CREATE TABLE search_cache_answers (
        hour BIGINT PRIMARY KEY NOT NULL,
        hits BIGINT NOT NULL DEFAULT 0,
        stale BIGINT NOT NULL DEFAULT 0,
        misses BIGINT NOT NULL DEFAULT 0
    )
    """,
)

LAST_USED: Final = (
    "CASE WHEN last_accessed_at > last_success_at THEN last_accessed_at"
    " ELSE COALESCE(last_success_at, last_accessed_at, last_attempt_at, fetched_at, created_at) END"
)
"""When a row was last read, stored or, without a result, tried. An index uses exactly this expression."""

_SIZES = _migration(
    6,
    "the size of every row",
    ("size_bytes INTEGER NOT NULL DEFAULT 0",),
    f"CREATE INDEX IF NOT EXISTS idx_search_cache_used ON search_results_cache (({LAST_USED}), size_bytes)",
    "CREATE INDEX IF NOT EXISTS idx_search_fetches_attempt ON search_fetches (last_attempt_at)",
)
_SET_SIZES = "UPDATE search_results_cache SET size_bytes = "
_SET_SIZES_IN_SQLITE = "length(CAST(results AS BLOB)) + length(CAST(search_params AS BLOB))"
_SET_SIZES_IN_POSTGRESQL = "octet_length(CAST(results AS text)) + octet_length(CAST(search_params AS text))"

_TAGS_TABLE = """
    CREATE TABLE search_cache_tags (
        tag TEXT{} NOT NULL,
        user_id TEXT NOT NULL,
        params_hash TEXT NOT NULL,
        PRIMARY KEY (tag, user_id, params_hash){}
    )
"""
_TAGS_INDEX = "CREATE INDEX idx_search_cache_tags_row ON search_cache_tags (user_id, params_hash)"
_TAGS = Migration(
    7,
    "the tags of results",
    (
        _TAGS_TABLE.format("", ""),
        _TAGS_INDEX,
        """
        CREATE TRIGGER search_cache_tags_removed AFTER DELETE ON search_results_cache BEGIN
            DELETE FROM search_cache_tags WHERE user_id = OLD.user_id AND params_hash = OLD.params_hash;
        END
        """,
    ),
    (
        _TAGS_TABLE.format(
            ' COLLATE "C"',  # prefixes are ranges only in the order of code points
            ", FOREIGN KEY (user_id, params_hash)"
            " REFERENCES search_results_cache (user_id, params_hash) ON DELETE CASCADE",
        ),
        _TAGS_INDEX,
    ),
)

MIGRATIONS: Final = (
    _RESULTS,
    _HEALTH,
    _ACCESSES,
    _FETCHES._replace(postgresql=(_TYPES, *_FETCHES.postgresql)),
    _ANSWERS,
    _SIZES._replace(
        sqlite=(*_SIZES.sqlite, _SET_SIZES + _SET_SIZES_IN_SQLITE),
        postgresql=(*_SIZES.postgresql, _SET_SIZES + _SET_SIZES_IN_POSTGRESQL),
    ),
    _TAGS,
)
"""All migrations of the cache, in order."""
