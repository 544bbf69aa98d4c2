"""Commands that remove results by key or tag, and read many at once; the SQL is here, as in ``queries.py``.

A stored tag is the name of its cache, ``k`` for a key or ``t`` for a tag, and the text. The database removes
tags with their row: by a trigger in SQLite, by a foreign key in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from comporta.cache import commands, sql
from comporta.cache.rows import ResultRow
from comporta.database.base import Rows, Statement
from comporta.database.command import Command
from comporta.validators import require_text

KEY, TAG = "k", "t"
TAGS_MAX: Final = 20
TAG_CHARS_MAX: Final = 200
MANY_MAX: Final = 1000
REMOVED_MAX: Final = 1000
"""Rows that one transaction removes."""

_LAST_CHAR = "\U0010ffff"
_TAGGED = {
    True: """
        params_hash IN (SELECT params_hash FROM search_cache_tags WHERE tag >= :first AND tag <= :last)
    """,
    False: """
        EXISTS (
            SELECT 1 FROM search_cache_tags AS tags
            WHERE tags.user_id = search_results_cache.user_id
            AND tags.params_hash = search_results_cache.params_hash AND tag >= :first AND tag <= :last
        )
    """,
}
_FETCH_KEY = {True: "params_hash", False: "user_id || ':' || params_hash"}
_KEYS_OF_TAGGED = {
    shared: f"SELECT {_FETCH_KEY[shared]} FROM search_results_cache WHERE {_TAGGED[shared]}"
    for shared in (True, False)
}


def _removal(where: str, keys: str) -> tuple[Statement, Statement]:
    """Return the statements that reset the keys of some rows, and remove the rows.

    The token of a key grows, so that a fetch that began before the removal cannot store its result.
    """
    reset = Statement(
        f"""
        UPDATE search_fetches SET token = token + 1, lease_until = NULL, fail_streak = 0,
            degraded_until = NULL, last_success_at = NULL
        WHERE fetch_key IN (
            SELECT fetch_key FROM search_fetches
            WHERE fetch_key IN ({keys})
            ORDER BY fetch_key LOCK()
        )
        """
    )
    remove = Statement(
        f"""
        DELETE FROM search_results_cache WHERE id IN (
            SELECT id FROM search_results_cache WHERE {where} ORDER BY id LIMIT :limit LOCK()
        )
        RETURNING params_hash
        """
    )
    return reset, remove


_REMOVE_TAGGED = {shared: _removal(_TAGGED[shared], _KEYS_OF_TAGGED[shared]) for shared in (True, False)}
_REMOVE_KEY = _removal(sql.ROWS_IN_SCOPE, "CAST(:key AS TEXT)")

_READ_MANY = Statement(
    f"""
    {sql.SELECT_RESULT} FROM search_results_cache
    WHERE params_hash IN (SELECT item FROM EACH(:hashes) AS hashes)
    AND (CAST(:user_id AS TEXT) IS NULL OR user_id = CAST(:user_id AS TEXT))
    ORDER BY has_value, fetched_at
    """
)


def stored_tag(cache: str, kind: str, text: Any) -> str:
    """Return a key or a tag as it is stored; raise unless it is 1 to 200 printable characters."""
    name = "key" if kind == KEY else "tag"
    return f"{cache}:{kind}:{require_text(name, text, TAG_CHARS_MAX)}"


def stored_tags(cache: str, key: str | None, tags: Sequence[str]) -> tuple[str, ...]:
    """Return the key and the tags of a result as they are stored."""
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise TypeError(f"tags must be a list of texts, got {tags!r:.100}")
    if len(tags) > TAGS_MAX:
        raise ValueError(f"tags must be at most {TAGS_MAX}, got {len(tags)}")
    keys = () if key is None else (stored_tag(cache, KEY, key),)
    return (*keys, *(stored_tag(cache, TAG, tag) for tag in tags))


def remove_tagged(tag: str, *, prefix: bool, shared: bool) -> Command[list[str]]:
    """Remove up to 1000 rows with a stored tag, or with one that starts with it; return their hashes.

    ``shared`` says whether users share results: then all rows with the same parameters are removed.
    """
    parameters = {"first": tag, "last": tag + _LAST_CHAR if prefix else tag, "limit": REMOVED_MAX}
    return Command(_REMOVE_TAGGED[shared], parameters, _parse_hashes)


def remove_key(key: str) -> Command[list[str]]:
    """Remove up to 1000 rows of a key, and return their hashes; its failures are forgotten."""
    return Command(_REMOVE_KEY, {**commands.scope_of(key), "limit": REMOVED_MAX}, _parse_hashes)


def read_many(user_id: str | None, hashes: Sequence[str]) -> Command[dict[str, ResultRow]]:
    """Return the rows of up to 1000 hashes: a user's own rows, or for ``None`` the freshest of any user."""
    from json import dumps  # noqa: PLC0415 - takes milliseconds, and only a cache needs it

    parameters = {"user_id": user_id, "hashes": dumps(list(hashes))}
    return Command((_READ_MANY,), parameters, _parse_many, writes=False)


def _parse_many(results: list[Rows]) -> dict[str, ResultRow]:
    return {row.params_hash: row for row in map(ResultRow._make, results[0])}


def _parse_hashes(results: list[Rows]) -> list[str]:
    return [str(row[0]) for row in results[-1]]
