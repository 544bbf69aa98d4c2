"""What people want to see of the cache: keys in trouble, answers that are not whole, who fetches.

Small looks for pages that ask often: each returns a few rows, those of keys by an index. A body is long and
stands before most columns of its row, so few rows are read at once.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from comporta.cache import statements
from comporta.cache.requests import Request
from comporta.cache.rows import Answers
from comporta.database.base import Rows, Statement

LOOKS_MAX: Final = 100

# What lasts longer than anything may is from before somebody set the clock back: see statements.py.
_UNWELL = Statement(
    """
    SELECT params_hash, fail_streak, UNIX(degraded_until) - :now, has_value, TEXT(search_params),
        TEXT(coverage)
    FROM search_results_cache WHERE degraded_until > AT(:now) AND degraded_until <= AT(:now + 1860)
    ORDER BY degraded_until LIMIT :limit
    """
)
_ASKED_LAST = Statement(
    """
    SELECT params_hash, TEXT(coverage) FROM search_results_cache WHERE last_accessed_at IS NOT NULL
    ORDER BY last_accessed_at DESC LIMIT :limit
    """
)
_FETCHERS = Statement(
    "SELECT owner, COUNT(*) FROM search_fetches WHERE lease_until > AT(:now) GROUP BY owner LIMIT 1000"
)
# What failed last has a time until which it is left alone, also when that is over: so an index knows it.
_ENTRIES = Statement(
    """
    SELECT COUNT(*), COALESCE(
        (SELECT SUM(fail_streak) FROM search_results_cache WHERE degraded_until IS NOT NULL), 0
    )
    FROM search_results_cache
    """
)


class Unwell(NamedTuple):
    """A key that is left alone for so many seconds more; ``coverage`` is that of what is kept."""

    params_hash: str
    fail_streak: int
    retry_in: float
    has_value: bool
    search_params: bytes
    coverage: bytes | None


class Covered(NamedTuple):
    """What part of what was asked for a key holds, as the table keeps it."""

    params_hash: str
    coverage: bytes


def unwell(limit: int) -> Request[list[Unwell]]:
    """Return rows of keys that are left alone, those first that are tried again first."""
    return Request((_UNWELL,), {"limit": _few(limit)}, _unwell, writes=False)


def partial(limit: int) -> Request[list[Covered]]:
    """Return how much the rows hold that were asked for last, as far as anybody said."""
    return Request((_ASKED_LAST,), {"limit": _few(limit)}, _covered, writes=False)


def fetchers() -> Request[dict[str, int]]:
    """Return how many keys each worker is fetching."""
    return Request((_FETCHERS,), {}, _by_owner, writes=False)


def brief() -> Request[dict[str, Any]]:
    """Return what of the figures is known without reading every row: those take seconds of a large table."""
    steps = (_ENTRIES, statements.DEGRADED, statements.FETCHING, statements.ANSWERS)
    return Request(steps, {}, _brief, writes=False)


def _brief(found: list[Rows]) -> dict[str, Any]:
    [[entries, streaks]], [[degraded]], [[fetching]], [answers] = found
    return {
        "entries": entries,
        "degraded_keys_count": degraded,
        "avg_fail_streak": float(streaks) / max(1, entries),
        "fetching": fetching,
        "last_24_hours": Answers(*answers).as_dict(),
    }


def _few(limit: int) -> int:
    if not 1 <= limit <= LOOKS_MAX:
        raise ValueError(f"limit must be 1 to {LOOKS_MAX}, got {limit}")
    return limit


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _unwell(found: list[Rows]) -> list[Unwell]:
    return [
        Unwell(key, streak, left, bool(value), _bytes(params), None if covered is None else _bytes(covered))
        for key, streak, left, value, params, covered in found[0]
    ]


def _covered(found: list[Rows]) -> list[Covered]:
    return [Covered(row[0], _bytes(row[1])) for row in found[0] if row[1] is not None]


def _by_owner(found: list[Rows]) -> dict[str, int]:
    return {str(owner): int(count) for owner, count in found[0]}
