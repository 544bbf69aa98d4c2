"""What the table tells: rows as they are read. Moments are Unix seconds by the database's clock."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A user's row. Without ``has_value`` nothing was ever fetched: it only remembers failures.

    Fields that came with a later migration are ``None`` in rows that are older. ``now`` is when it was read.
    """

    user_id: str
    params_hash: str
    search_params: bytes
    results: bytes
    total_results: int
    sources: list[str]
    fetched_at: float
    created_at: float
    last_success_at: float | None
    last_attempt_at: float | None
    fail_streak: int
    degraded_until: float | None
    coverage: bytes | None
    fetch_duration_ms: int | None
    has_value: bool
    priority: str | None
    access_count: int
    last_accessed_at: float | None
    now: float


class Claim(NamedTuple):
    """Who may fetch. ``token`` grows with every grant of a key, so that a late one is known; 0: none yet.

    ``lease_until`` and ``owner`` are those of the fetch under way; ``None`` if there is none.
    """

    granted: bool
    token: int
    lease_until: float | None
    owner: str
    degraded_until: float | None
    fail_streak: int
    last_success_at: float | None
    now: float


class Health(NamedTuple):
    """How a key fares after a failure."""

    fail_streak: int
    degraded_until: float | None
    now: float


class Touch(NamedTuple):
    """Accesses to a row since it was last told; ``saved``: whether the user keeps this search."""

    user_id: str
    params_hash: str
    accesses: int
    last_at: float
    saved: bool | None = None


class Listed(NamedTuple):
    """A row for people to look at, without its body."""

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


class Top(NamedTuple):
    """A key with how often it was asked for of late, by how many users, and how fresh its freshest row is."""

    params_hash: str
    accesses: int
    users: int
    fetched_at: float
    fail_streak: int
    now: float


class Due(NamedTuple):
    """A row that is to be refreshed: because somebody ``wanted`` it, or because it is hot and soon stale."""

    user_id: str
    params_hash: str
    search_params: bytes
    fetched_at: float
    wanted: bool
    now: float
