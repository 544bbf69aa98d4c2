"""Rows as the database returns them. Times are Unix seconds by the database's clock."""

from __future__ import annotations

from typing import NamedTuple


class ResultRow(NamedTuple):
    """The columns of a row that are needed to serve its result; see ``CacheRow``.

    ``sources``, ``results`` and ``coverage`` are JSON as the database returns it: bytes, or a text.
    """

    user_id: str
    params_hash: str
    total_results: int
    fetched_at: float
    last_success_at: float | None
    last_attempt_at: float | None
    fail_streak: int
    degraded_until: float | None
    fetch_duration_ms: int | None
    priority: str | None
    sources: bytes | str | None
    results: bytes | str
    coverage: bytes | str | None
    has_value: bool
    now: float


class CacheRow(NamedTuple):
    """One user's result for one set of parameters.

    ``has_value`` is false if no fetch has succeeded yet: the row only records failures. Columns that a later
    migration added are ``None`` in older rows. ``now`` is the database's time when the row was read.
    """

    user_id: str
    params_hash: str
    total_results: int
    fetched_at: float
    last_success_at: float | None
    last_attempt_at: float | None
    fail_streak: int
    degraded_until: float | None
    fetch_duration_ms: int | None
    priority: str | None
    sources: tuple[str, ...]
    has_value: bool
    search_params: bytes
    results: bytes
    coverage: bytes | None
    created_at: float
    access_count: int
    last_accessed_at: float | None
    now: float


class FetchClaim(NamedTuple):
    """The reply to a worker that wants to fetch a key, and the state of that key.

    ``token`` grows with every grant, so that a fetcher whose lease was replaced is recognized; 0 means that
    no worker has claimed the key yet. ``lease_until`` and ``owner`` belong to the current fetch, if any.
    """

    granted: bool
    token: int
    lease_until: float | None
    owner: str
    degraded_until: float | None
    fail_streak: int
    last_success_at: float | None
    now: float


class KeyHealth(NamedTuple):
    """The health of a key after a failure: failures in a row, end of the backoff, and the database's time."""

    fail_streak: int
    degraded_until: float | None
    now: float


class AccessRecord(NamedTuple):
    """Accesses to a row since the last flush; ``saved`` sets whether the user keeps this search."""

    user_id: str
    params_hash: str
    accesses: int
    last_at: float
    saved: bool | None = None


class AnswerCounts(NamedTuple):
    """How many callers got a fresh result, a stale one, or had to wait for a fetch."""

    hits: int = 0
    stale: int = 0
    misses: int = 0

    def as_dict(self) -> dict[str, float]:
        """Return the total and the share of each."""
        total = sum(self)
        shares = [count / total if total else 0.0 for count in self]
        return {"answers": total, **dict(zip(("hit_rate", "stale_rate", "miss_rate"), shares, strict=True))}


class ListedRow(NamedTuple):
    """A row for an operator's listing, without its body."""

    user_id: str
    params_hash: str
    total_results: int
    has_value: bool
    fetched_at: float
    last_success_at: float | None
    last_attempt_at: float | None
    fail_streak: int
    degraded_until: float | None
    fetch_duration_ms: int | None
    priority: str
    access_count: int
    last_accessed_at: float | None
    due_at: float | None
    now: float


class TopKey(NamedTuple):
    """A key with its accesses of the last 24 hours, its number of users, and its newest ``fetched_at``."""

    params_hash: str
    accesses: int
    users: int
    fetched_at: float
    fail_streak: int
    now: float


class DueRow(NamedTuple):
    """A row to refresh, because an operator ``requested`` it or because it is hot and soon stale."""

    user_id: str
    params_hash: str
    search_params: bytes
    fetched_at: float
    requested: bool
    now: float
