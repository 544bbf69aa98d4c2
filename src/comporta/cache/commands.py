"""The commands of the cache: every change and lookup that fetching needs, each as one ``Command``.

Pure: no command knows a database or a clock. The SQL is in ``sql.py``; commands that only pages and command
lines need are in ``queries.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from comporta.cache import maintenance_sql, sql
from comporta.cache.rows import (
    AccessRecord,
    AnswerCounts,
    CacheRow,
    DueRow,
    FetchClaim,
    KeyHealth,
    ListedRow,
    ResultRow,
    TopKey,
)
from comporta.cache.serialization import decode_sources
from comporta.database.base import Rows, Statement
from comporta.database.command import Command
from comporta.validators import require_integer, require_number

LEASE_SECONDS_MAX: Final = 3600.0
"""No fetch may take longer. A lease that ends later was written before the clock was set back."""

ACCESS_ROWS_MAX: Final = 500
ROWS_MAX: Final = 10_000
SECONDS_MAX: Final = 1e9

_STORE_STATEMENTS = (sql.LOCK_ROWS_TO_RESET, sql.STORE_ROW, sql.RESET_ROWS)
_TAG_STATEMENTS = (sql.REMOVE_TAGS, sql.INSERT_TAGS)
_ANSWER_STATEMENTS = (maintenance_sql.ADD_ANSWERS, maintenance_sql.PRUNE_ANSWERS)
_FAILURE_STATEMENTS = (sql.INSERT_EMPTY_ROW, sql.COPY_FAILURE_TO_ROWS)


def read(user_id: str, params_hash: str) -> Command[CacheRow | None]:
    """Return the user's row, or ``None``; ``has_value`` is false in a row that only records failures."""
    parameters = {"user_id": user_id, "params_hash": params_hash}
    return Command((sql.READ,), parameters, _parse_row, writes=False, single_row=True)


def read_result(user_id: str | None, params_hash: str) -> Command[ResultRow | None]:
    """Return the result of the user, or for ``None`` the freshest one of any user."""
    statement, parameters = result_query(user_id, params_hash)
    return Command((statement,), parameters, _parse_result, writes=False, single_row=True)


def result_query(user_id: str | None, params_hash: str) -> tuple[Statement, dict[str, str]]:
    """Return the statement and the parameters of ``read_result``, for hits that need no command."""
    if user_id is None:
        return sql.READ_SHARED_RESULT, {"params_hash": params_hash}
    return sql.READ_RESULT, {"user_id": user_id, "params_hash": params_hash}


def read_claim(key: str) -> Command[FetchClaim]:
    """Return the health of a key and which worker fetches it, without claiming it."""
    return Command((sql.READ_CLAIM,), scope_of(key), _parse_claim, writes=False, single_row=True)


def claim(
    key: str, owner: str, lease_seconds: float, *, forced: bool = False, not_within: float = 0.0
) -> Command[FetchClaim]:
    """Claim the right to fetch a key for ``lease_seconds``.

    The claim is refused while another lease is active. Unless ``forced``, it is also refused while the key is
    degraded, and for ``not_within`` seconds after its last success.
    """
    parameters = {
        **scope_of(key),
        "owner": owner,
        "lease_seconds": _require_lease_seconds(lease_seconds),
        "lease_seconds_max": LEASE_SECONDS_MAX,
        "forced": forced,
        "not_within": _require_seconds("not_within", not_within),
    }
    return Command((sql.CLAIM, sql.READ_CLAIM), parameters, _parse_granted_claim)


def renew(key: str, token: int, lease_seconds: float) -> Command[bool]:
    """Extend a lease; return false if another worker holds a later one."""
    seconds = _require_lease_seconds(lease_seconds)
    return Command((sql.RENEW,), {"key": key, "token": token, "lease_seconds": seconds}, _has_rows)


def release(key: str, token: int) -> Command[None]:
    """End a lease without a result."""
    return Command((sql.RELEASE,), {"key": key, "token": token}, _parse_nothing)


def record_success(  # noqa: PLR0917 - a row, in the order of its columns
    key: str,
    token: int | None,
    user_id: str,
    params_hash: str,
    search_params: bytes,
    results: bytes,
    total_results: int,
    sources: Sequence[str],
    coverage: bytes | None = None,
    fetch_duration_ms: int | None = None,
    age: float = 0.0,
    tags: Sequence[str] = (),
) -> Command[bool]:
    """Store a result; return false if a later lease was granted meanwhile.

    ``token`` is ``None`` if the caller fetched without a claim. ``age`` is how many seconds ago the oldest
    part of the result was fetched. ``tags``, if any, replace those of the row.
    """
    parameters: dict[str, Any] = {
        "key": key,
        "token": token,
        "user_id": user_id,
        "params_hash": params_hash,
        "search_params": search_params.decode(),
        "results": results.decode(),
        "total_results": total_results,
        "sources": _encode_sources(tuple(sources)),
        "coverage": None if coverage is None else coverage.decode(),
        "fetch_duration_ms": fetch_duration_ms,
        "age": _require_seconds("age", age),
        "size_bytes": len(results) + len(search_params),
    }
    if tags:
        parameters["tags"] = _encode_sources(tuple(tags))
    statements = (sql.RECORD_SUCCESS, *_STORE_STATEMENTS, *(_TAG_STATEMENTS if tags else ()))
    return Command(statements, parameters, _has_rows)


def record_failure(
    key: str, token: int | None, user_id: str, params_hash: str, search_params: bytes | None = None
) -> Command[KeyHealth]:
    """Count a failure in all rows of the key; a fetcher whose lease was replaced changes nothing."""
    parameters = {
        "key": key,
        "token": token,
        "user_id": user_id,
        "params_hash": params_hash,
        "search_params": (search_params or b"{}").decode(),
        "size_bytes": len(search_params or b"{}"),
    }
    return Command((sql.RECORD_FAILURE, *_FAILURE_STATEMENTS, sql.READ_HEALTH), parameters, _parse_health)


def record_accesses(
    accesses: Iterable[AccessRecord | tuple[str, str, int, float]], answers: AnswerCounts | None = None
) -> Command[None]:
    """Add accesses of up to 500 rows, and ``answers``; rows that no longer exist are ignored."""
    by_row: dict[tuple[str, str], AccessRecord] = {}
    for record in map(AccessRecord._make, map(_with_saved, accesses)):
        before = by_row.get(record[:2])
        by_row[record[:2]] = record if before is None else _merge_accesses(before, record)
    if len(by_row) > ACCESS_ROWS_MAX:
        raise ValueError(f"accesses must be of at most {ACCESS_ROWS_MAX} rows, got {len(by_row)}")
    parameters: dict[str, Any] = {}
    for n, record in enumerate(by_row.values()):
        names = (f"user_{n}", f"hash_{n}", f"accesses_{n}", f"at_{n}", f"saved_{n}")
        parameters |= zip(names, record, strict=True)
    statements = (maintenance_sql.record_accesses(len(by_row)),) if by_row else ()
    if answers is not None:
        parameters |= answers._asdict()
        statements = (*statements, *_ANSWER_STATEMENTS)
    return Command(statements, parameters, _parse_nothing)


def evict(user_id: str, keep: int, protected: str = "") -> Command[int]:
    """Remove all but ``keep`` of a user's rows, and return how many.

    Rows without a value go first, then cold before warm before hot, the least recently used first.
    ``protected`` is a ``params_hash`` that stays: a row that was just fetched has had no time to become hot.
    """
    parameters = {"user_id": user_id, "keep": require_integer("keep", keep, 0), "protected": protected}
    return Command((maintenance_sql.EVICT,), parameters, _row_count)


def evict_least_recently_used(rows_max: int, bytes_max: int, limit: int = 1000) -> Command[int]:
    """Evict rows until the table is within its bounds, at most ``limit`` of them; return how many.

    Records of fetches have the same bound as rows, unless they hold a lease or a backoff.
    """
    parameters = {
        "rows_max": require_integer("rows_max", rows_max, 0),
        "bytes_max": require_integer("bytes_max", bytes_max, 0),
        "limit": _require_limit(limit),
    }
    statements = (maintenance_sql.EVICT_LEAST_RECENTLY_USED, maintenance_sql.EVICT_FETCHES)
    return Command(statements, parameters, _first_row_count)


def remove(user_id: str, params_hash: str, key: str | None = None) -> Command[bool]:
    """Remove a row, and return whether it existed; a key without rows loses its failures.

    ``key`` defaults to ``params_hash``.
    """
    parameters = {"user_id": user_id, "params_hash": params_hash, "key": params_hash if key is None else key}
    statements = (sql.LOCK_KEY, sql.REMOVE, sql.RESET_KEY)
    return Command(statements, parameters, _parse_removed)


def mark_due(params_hash: str, user_id: str | None = None) -> Command[int]:
    """Make a key due for ``refresh_due`` in any worker, and return how many rows it has."""
    parameters = {"key": params_hash, "params_hash": params_hash, "user_id": user_id}
    return Command((sql.LOCK_KEY, sql.MARK_DUE), parameters, _row_count)


def list_due(limit: int, age: float) -> Command[list[DueRow]]:
    """Return rows to refresh: marked ones first, then hot rows of at least this age, the oldest first."""
    parameters = {"limit": _require_limit(limit), "age": _require_seconds("age", age)}
    return Command((sql.LIST_DUE,), parameters, _parse_due, writes=False)


def list_rows(
    limit: int = 100, *, user_id: str | None = None, params_hash: str | None = None, degraded: bool = False
) -> Command[list[ListedRow]]:
    """Return rows without bodies, the freshest first; with ``degraded``, by the end of their backoff."""
    parameters = {"limit": _require_limit(limit), "user_id": user_id, "params_hash": params_hash}
    statement = sql.LIST_DEGRADED if degraded else sql.LIST
    return Command((statement,), parameters, _parse_listed, writes=False)


def read_stats(fresh: float = 6 * 3600.0, stale: float = 24 * 3600.0) -> Command[dict[str, Any]]:
    """Return statistics of all rows, and how all workers answered in the last 24 hours."""
    parameters = {"fresh": _require_seconds("fresh", fresh), "stale": _require_seconds("stale", stale)}
    statements = (sql.READ_STATS, sql.COUNT_DEGRADED, sql.COUNT_FETCHES, maintenance_sql.READ_ANSWERS)
    return Command(statements, parameters, _parse_stats, writes=False)


def list_top(limit: int = 10) -> Command[list[TopKey]]:
    """Return the keys with the most accesses, all users together."""
    return Command((sql.LIST_TOP,), {"limit": _require_limit(limit)}, _parse_top, writes=False)


def clear(limit: int = 1000) -> Command[list[str]]:
    """Remove up to ``limit`` rows of any user, and return their keys; an empty list means none are left."""
    statements = (sql.CLEAR, sql.CLEAR_FETCHES)
    return Command(statements, {"limit": _require_limit(limit)}, _parse_cleared)


def prune(older_than: float, limit: int = 1000) -> Command[int]:
    """Remove rows and fetch records unused for ``older_than`` seconds, up to ``limit`` of each."""
    parameters = {
        "older_than": _require_seconds("older_than", older_than),
        "limit": _require_limit(limit),
    }
    return Command((maintenance_sql.PRUNE_ROWS, maintenance_sql.PRUNE_FETCHES), parameters, _total_row_count)


def scope_of(key: str) -> dict[str, Any]:
    """Return the parameters that select the rows of a key: its hash and, if users are separate, its user."""
    user_id, _, params_hash = key.rpartition(":")
    return {"key": key, "user_id": user_id, "params_hash": params_hash}


def _require_seconds(name: str, value: float) -> float:
    return require_number(name, value, 0.0, SECONDS_MAX, unit="seconds")


def _require_lease_seconds(value: float) -> float:
    return require_number("lease_seconds", value, 0.001, LEASE_SECONDS_MAX, unit="seconds")


def _require_limit(value: int) -> int:
    return require_integer("limit", value, 1, ROWS_MAX)


def _with_saved(record: Sequence[Any]) -> Sequence[Any]:
    return record if len(record) > 4 else (*record, None)


def _merge_accesses(one: AccessRecord, other: AccessRecord) -> AccessRecord:
    saved = one.saved if other.saved is None else other.saved
    return one._replace(
        accesses=one.accesses + other.accesses, last_at=max(one.last_at, other.last_at), saved=saved
    )


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def parse_result(rows: Rows) -> ResultRow | None:
    """Return the first row as a ``ResultRow``; ``None`` if there is none."""
    return tuple.__new__(ResultRow, rows[0]) if rows else None  # what _make does, in half the time


def _parse_result(results: list[Rows]) -> ResultRow | None:
    return parse_result(results[0])


def _parse_row(results: list[Rows]) -> CacheRow | None:
    if not results[0]:
        return None
    row = results[0][0]
    texts = (None if text is None else _bytes(text) for text in row[12:15])
    return CacheRow._make((*row[:10], decode_sources(row[10]), bool(row[11]), *texts, *row[15:]))


@lru_cache(1024)
def _encode_sources(sources: tuple[str, ...]) -> str:
    from json import dumps  # noqa: PLC0415 - see above

    return dumps(sources)


def _parse_claim(results: list[Rows]) -> FetchClaim:
    [state] = results[-1]
    return FetchClaim(False, *state)


def _parse_granted_claim(results: list[Rows]) -> FetchClaim:
    granted, [state] = results
    return FetchClaim(bool(granted), *state)


def _has_rows(results: list[Rows]) -> bool:
    return bool(results[0])


def _parse_removed(results: list[Rows]) -> bool:
    return bool(results[1])


def _parse_nothing(results: list[Rows]) -> None:
    """Return nothing: no statement returns rows."""


def _row_count(results: list[Rows]) -> int:
    return len(results[-1])


def _first_row_count(results: list[Rows]) -> int:
    return len(results[0])


def _total_row_count(results: list[Rows]) -> int:
    return sum(map(len, results))


def _parse_health(results: list[Rows]) -> KeyHealth:
    [row] = results[-1]
    return KeyHealth(*row)


def _parse_due(results: list[Rows]) -> list[DueRow]:
    return [
        DueRow(user, params_hash, _bytes(search_params), fetched, bool(requested), now)
        for user, params_hash, search_params, fetched, requested, now in results[0]
    ]


def _parse_listed(results: list[Rows]) -> list[ListedRow]:
    return [ListedRow._make((*row[:3], bool(row[3]), *row[4:])) for row in results[0]]


def _parse_top(results: list[Rows]) -> list[TopKey]:
    return [TopKey._make(row) for row in results[0]]


def _parse_cleared(results: list[Rows]) -> list[str]:
    return [str(row[0]) for row in results[0]]


def _parse_stats(results: list[Rows]) -> dict[str, Any]:
    [[entries, values, streak, streak_max, hot, warm, fresh, usable, _]] = results[0]
    [[degraded]], [[fetching]], [answers] = results[1:]
    return {
        "entries": entries,
        "degraded_keys_count": degraded,
        "avg_fail_streak": streak,
        "max_fail_streak": streak_max or 0,
        "fetching": fetching,
        "priorities": {"hot": hot, "warm": warm, "cold": entries - hot - warm},
        "ages": {
            "fresh": fresh,
            "stale": usable - fresh,
            "expired": values - usable,
            "without_value": entries - values,
        },
        "last_24_hours": AnswerCounts(*answers).as_dict(),
    }


UNREADABLE_STATS: Final[dict[str, Any]] = dict.fromkeys(
    (
        *("entries", "degraded_keys_count", "avg_fail_streak", "max_fail_streak", "fetching", "priorities"),
        *("ages", "last_24_hours"),
    )
)
"""The statistics of tables that cannot be read: every value is ``None``."""
