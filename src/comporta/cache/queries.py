"""Queries for pages and command lines: degraded keys, partial results, current fetches, a short summary.

Pages repeat them often, so each returns few rows, found by an index. A row stores its long body before most
columns, which makes every row expensive to read, so limits are small.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from comporta.cache import maintenance_sql, sql
from comporta.cache.rows import AnswerCounts
from comporta.database.base import Rows, Statement
from comporta.database.command import Command
from comporta.validators import require_integer

LIMIT_MAX: Final = 100

# A backoff that ends later than is possible was written before the clock was set back: see sql.py.
_LIST_DEGRADED = Statement(
    """
    SELECT params_hash, fail_streak, UNIX(degraded_until) - :now, has_value, TEXT(search_params),
        TEXT(coverage)
    FROM search_results_cache WHERE degraded_until > AT(:now) AND degraded_until <= AT(:now + 1860)
    ORDER BY degraded_until LIMIT :limit
    """
)
_LIST_RECENT_COVERAGE = Statement(
    """
    SELECT params_hash, TEXT(coverage) FROM search_results_cache WHERE last_accessed_at IS NOT NULL
    ORDER BY last_accessed_at DESC LIMIT :limit
    """
)
_COUNT_FETCHES_BY_WORKER = Statement(
    "SELECT owner, COUNT(*) FROM search_fetches WHERE lease_until > AT(:now) GROUP BY owner LIMIT 1000"
)
# A row whose last attempt failed keeps its degraded_until after the backoff has ended, so the index of that
# column finds all failing rows.
_COUNT_ROWS = Statement(
    """
    SELECT COUNT(*), COALESCE(
        (SELECT SUM(fail_streak) FROM search_results_cache WHERE degraded_until IS NOT NULL), 0
    )
    FROM search_results_cache
    """
)


class DegradedKey(NamedTuple):
    """A key in backoff for ``retry_in`` more seconds, with the coverage of its cached result, if any."""

    params_hash: str
    fail_streak: int
    retry_in: float
    has_value: bool
    search_params: bytes
    coverage: bytes | None


class KeyCoverage(NamedTuple):
    """The coverage of a key as stored JSON."""

    params_hash: str
    coverage: bytes


def list_degraded(limit: int) -> Command[list[DegradedKey]]:
    """Return keys in backoff, the next retry first."""
    return Command((_LIST_DEGRADED,), {"limit": _require_limit(limit)}, _parse_degraded, writes=False)


def list_recent_coverage(limit: int) -> Command[list[KeyCoverage]]:
    """Return the coverage of the most recently used rows that have one."""
    return Command((_LIST_RECENT_COVERAGE,), {"limit": _require_limit(limit)}, _parse_coverage, writes=False)


def count_fetches_by_worker() -> Command[dict[str, int]]:
    """Return how many keys each worker is fetching."""
    return Command((_COUNT_FETCHES_BY_WORKER,), {}, _parse_counts, writes=False)


def read_summary() -> Command[dict[str, Any]]:
    """Return the statistics that do not require reading every row, which takes seconds in a large table."""
    statements = (_COUNT_ROWS, sql.COUNT_DEGRADED, sql.COUNT_FETCHES, maintenance_sql.READ_ANSWERS)
    return Command(statements, {}, _parse_summary, writes=False)


def decode_column(text: bytes | None) -> Any:
    """Return the value of a JSON column, or its text if another program wrote something other than JSON."""
    from json import loads  # noqa: PLC0415 - takes milliseconds, and only pages need it

    if text is None:
        return None
    try:
        return loads(text)
    except (ValueError, RecursionError):
        return text.decode(errors="replace")


def _parse_summary(results: list[Rows]) -> dict[str, Any]:
    [[entries, streaks]], [[degraded]], [[fetching]], [answers] = results
    return {
        "entries": entries,
        "degraded_keys_count": degraded,
        "avg_fail_streak": float(streaks) / max(1, entries),
        "fetching": fetching,
        "last_24_hours": AnswerCounts(*answers).as_dict(),
    }


def _require_limit(limit: int) -> int:
    return require_integer("limit", limit, 1, LIMIT_MAX)


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _parse_degraded(results: list[Rows]) -> list[DegradedKey]:
    return [
        DegradedKey(
            key, streak, left, bool(value), _bytes(params), None if coverage is None else _bytes(coverage)
        )
        for key, streak, left, value, params, coverage in results[0]
    ]


def _parse_coverage(results: list[Rows]) -> list[KeyCoverage]:
    return [KeyCoverage(row[0], _bytes(row[1])) for row in results[0] if row[1] is not None]


def _parse_counts(results: list[Rows]) -> dict[str, int]:
    return {str(owner): int(count) for owner, count in results[0]}
