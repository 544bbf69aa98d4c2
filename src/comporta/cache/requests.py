"""What can be asked of the table: each verb once, as a value that says what to run and how to read it.

Pure: a request knows neither a database nor a clock, and whoever carries it out may block or await.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import isfinite
from typing import Any, Final, Generic, NamedTuple, TypeVar

from comporta.cache import statements
from comporta.cache.rows import Answers, Claim, Due, Entry, Health, Listed, Top, Touch
from comporta.database.base import Parameters, Rows, Statement

T = TypeVar("T")

LEASE_SECONDS_MAX: Final = 3600.0
"""No fetch may take longer; one that seems to is from before somebody set the clock back."""

TOUCHES_MAX: Final = 500
ROWS_MAX: Final = 10_000
SECONDS_MAX: Final = 1e9


_READ_SHARED = (statements.READ_SHARED,)
_KEEPING = (statements.LOCK_UNWELL, statements.KEEP, statements.HEALED)
_COUNTING = (statements.COUNT_ANSWERS, statements.FORGET_ANSWERS)
_HURTING = (statements.REMEMBER, statements.LOCK_ROWS, statements.HURT)


class Request(NamedTuple, Generic[T]):
    """Statements of one transaction, and what to make of what they return.

    ``small``: it reads a row by its key and changes nothing.
    """

    statements: tuple[Statement, ...]
    parameters: Parameters
    parse: Callable[[list[Rows]], T]
    writes: bool = True
    small: bool = False


def read(user_id: str, params_hash: str) -> Request[Entry | None]:
    """Return the user's row, or ``None``; one that only remembers failures has ``has_value`` false."""
    told = {"user_id": user_id, "params_hash": params_hash}
    return Request((statements.READ,), told, _entry, writes=False, small=True)


def read_shared(params_hash: str) -> Request[Entry | None]:
    """Return the freshest row with a value, of whichever user."""
    told = {"params_hash": params_hash}
    return tuple.__new__(Request, (_READ_SHARED, told, _entry, False, True))  # in every hit: see _entry


def look(key: str) -> Request[Claim]:
    """Return who fetches a key and how it fares, without claiming it; for those who wait."""
    return Request((statements.LOOK,), {"key": key}, _looked, writes=False, small=True)


def claim(
    key: str, owner: str, lease_seconds: float, *, forced: bool = False, not_within: float = 0.0
) -> Request[Claim]:
    """Ask to be the one who fetches, for so many seconds.

    Refused while a lease runs; and, unless ``forced``, while the key is degraded or within ``not_within``
    seconds of its last success.
    """
    told = {
        "key": key,
        "owner": owner,
        "lease_seconds": _seconds("lease_seconds", lease_seconds, LEASE_SECONDS_MAX, least=0.001),
        "lease_seconds_max": LEASE_SECONDS_MAX,
        "forced": forced,
        "not_within": _seconds("not_within", not_within),
    }
    return Request((statements.CLAIM, statements.LOOK), told, _claimed)


def renew(key: str, token: int, lease_seconds: float) -> Request[bool]:
    """Prolong a lease, and return whether it was still the latest."""
    seconds = _seconds("lease_seconds", lease_seconds, LEASE_SECONDS_MAX, least=0.001)
    return Request((statements.RENEW,), {"key": key, "token": token, "lease_seconds": seconds}, _any)


def release(key: str, token: int) -> Request[None]:
    """End a lease without having fetched."""
    return Request((statements.RELEASE,), {"key": key, "token": token}, _nothing)


def succeed(  # noqa: PLR0917 - a row, in the order of its columns
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
) -> Request[bool]:
    """Keep what was fetched; ``False`` if another was granted the key later. No token: nobody claimed it.

    ``age``: so many seconds ago its oldest part was fetched.
    """
    told = {
        "key": key,
        "token": token,
        "user_id": user_id,
        "params_hash": params_hash,
        "search_params": search_params.decode(),
        "results": results.decode(),
        "total_results": total_results,
        "sources": _sources_json(tuple(sources)),
        "coverage": None if coverage is None else coverage.decode(),
        "fetch_duration_ms": fetch_duration_ms,
        "age": _seconds("age", age),
    }
    return Request((statements.SUCCEEDED, *_KEEPING), told, _any)


def fail(
    key: str, token: int | None, user_id: str, params_hash: str, search_params: bytes | None = None
) -> Request[Health]:
    """Count a failure, in all rows of the key; from a fetcher that was replaced it counts for nothing."""
    told = {
        "key": key,
        "token": token,
        "user_id": user_id,
        "params_hash": params_hash,
        "search_params": "{}" if search_params is None else search_params.decode(),
    }
    return Request((statements.FAILED, *_HURTING, statements.HEALTH), told, _health)


def touch(
    touches: Iterable[Touch | tuple[str, str, int, float]], answers: Answers | None = None
) -> Request[None]:
    """Count accesses, of up to 500 rows at once, and ``answers``; rows that are gone are left out."""
    known: dict[tuple[str, str], Touch] = {}
    for each in map(Touch._make, map(_filled, touches)):
        before = known.get(each[:2])
        known[each[:2]] = each if before is None else _joined(before, each)
    if len(known) > TOUCHES_MAX:
        raise ValueError(f"touches must be at most {TOUCHES_MAX} rows, got {len(known)}")
    told: dict[str, Any] = {}
    for n, each in enumerate(known.values()):
        names = (f"user_{n}", f"hash_{n}", f"accesses_{n}", f"at_{n}", f"saved_{n}")
        told |= zip(names, each, strict=True)
    steps = (statements.touches(len(known)),) if known else ()
    if answers is not None:
        told |= answers._asdict()
        steps = (*steps, *_COUNTING)
    return Request(steps, told, _nothing)


def evict(user_id: str, keep: int, spared: str = "") -> Request[int]:
    """Remove all but so many of a user's rows.

    Those without a value go first, then cold before warm before hot, the oldest access first; ``spared``, a
    ``params_hash``, is among those that stay: what was just fetched had no time to become hot.
    """
    if keep < 0:
        raise ValueError(f"keep must be at least 0, got {keep}")
    return Request((statements.EVICT,), {"user_id": user_id, "keep": keep, "spared": spared}, _count)


def rm(user_id: str, params_hash: str, key: str | None = None) -> Request[bool]:
    """Remove a row; a key (``params_hash``, unless said otherwise) without rows forgets its failures."""
    told = {"user_id": user_id, "params_hash": params_hash, "key": params_hash if key is None else key}
    steps = (statements.LOCK_KEY, statements.REMOVE, statements.START_ANEW)
    return Request(steps, told, _removed)


def mark_due(params_hash: str, user_id: str | None = None) -> Request[int]:
    """Have a key refreshed by whoever next asks what is ``due``, and return how many rows it has."""
    told = {"key": params_hash, "params_hash": params_hash, "user_id": user_id}
    return Request((statements.LOCK_KEY, statements.MARK_DUE), told, _count)


def due(limit: int, age: float) -> Request[list[Due]]:
    """Return what is to be refreshed: what was marked, then hot rows of that age, the oldest first."""
    told = {"limit": _rows("limit", limit), "age": _seconds("age", age)}
    return Request((statements.DUE,), told, _due, writes=False)


def rows(
    limit: int = 100, *, user_id: str | None = None, params_hash: str | None = None, degraded: bool = False
) -> Request[list[Listed]]:
    """Return rows to look at: the freshest first, or only the degraded, the longest first."""
    told = {"limit": _rows("limit", limit), "user_id": user_id, "params_hash": params_hash}
    statement = statements.LIST_DEGRADED if degraded else statements.LIST
    return Request((statement,), told, _listed, writes=False)


def figures(fresh: float = 6 * 3600.0, stale: float = 24 * 3600.0) -> Request[dict[str, Any]]:
    """Return how the whole cache fares, and how all workers answered in the last 24 hours."""
    told = {"fresh": _seconds("fresh", fresh), "stale": _seconds("stale", stale)}
    steps = (statements.FIGURES, statements.DEGRADED, statements.FETCHING, statements.ANSWERS)
    return Request(steps, told, _figures, writes=False)


def top(limit: int = 10) -> Request[list[Top]]:
    """Return the keys that are asked for most, of all users together."""
    return Request((statements.TOP,), {"limit": _rows("limit", limit)}, _top, writes=False)


def clear(limit: int = 1000) -> Request[list[str]]:
    """Remove so many rows, whoever's they are, and return the keys they were of; none: that was all."""
    steps = (statements.CLEAR, statements.CLEAR_FETCHES)
    return Request(steps, {"limit": _rows("limit", limit)}, _cleared)


def prune(older_than: float, limit: int = 1000) -> Request[int]:
    """Remove rows and records of fetches that nobody asked for in so many seconds, ``limit`` of each."""
    told = {"older_than": _seconds("older_than", older_than), "limit": _rows("limit", limit)}
    return Request((statements.FORGET_ROWS, statements.FORGET_FETCHES), told, _counts)


def _seconds(name: str, value: float, most: float = SECONDS_MAX, *, least: float = 0.0) -> float:
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} must be {least:g} to {most:g} seconds, got {value}")
    return float(value)


def _rows(name: str, value: int) -> int:
    if not 1 <= value <= ROWS_MAX:
        raise ValueError(f"{name} must be 1 to {ROWS_MAX}, got {value}")
    return value


def _filled(each: Sequence[Any]) -> Sequence[Any]:
    return each if len(each) > 4 else (*each, None)


def _joined(one: Touch, other: Touch) -> Touch:
    saved = one.saved if other.saved is None else other.saved
    return one._replace(
        accesses=one.accesses + other.accesses, last_at=max(one.last_at, other.last_at), saved=saved
    )


def _bytes(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _entry(found: list[Rows]) -> Entry | None:
    if not found[0]:
        return None
    row = found[0][0]
    rest = row[12:]
    if type(rest[0]) is str:  # as a server tells it; a file gives bytes
        rest = (*(text and text.encode() for text in rest[:3]), *rest[3:])
    told = row[:10] + (_sources(row[10]), bool(row[11])) + rest  # noqa: RUF005 - in every hit: see below
    return tuple.__new__(Entry, told)  # as namedtuple's own _make does, in half the time


@lru_cache(1024)
def _sources(text: bytes | str | None) -> tuple[str, ...]:
    """There are few of them, in many rows."""
    from json import loads  # noqa: PLC0415 - costs milliseconds that only a cache needs

    return tuple(loads(text)) if text else ()


@lru_cache(1024)
def _sources_json(sources: tuple[str, ...]) -> str:
    from json import dumps  # noqa: PLC0415 - see above

    return dumps(sources)


def _looked(found: list[Rows]) -> Claim:
    rows = found[-1]
    return Claim(False, *rows[0]) if rows else _UNKNOWN


_UNKNOWN = Claim(False, 0, None, "", None, 0, None, 0.0)


def _claimed(found: list[Rows]) -> Claim:
    granted, [standing] = found
    return Claim(bool(granted), *standing)


def _any(found: list[Rows]) -> bool:
    return bool(found[0])


def _removed(found: list[Rows]) -> bool:
    return bool(found[1])


def _nothing(found: list[Rows]) -> None:
    """Nobody waits for an answer."""


def _count(found: list[Rows]) -> int:
    return len(found[-1])


def _counts(found: list[Rows]) -> int:
    return sum(map(len, found))


def _health(found: list[Rows]) -> Health:
    [row] = found[-1]
    return Health(*row)


def _due(found: list[Rows]) -> list[Due]:
    return [
        Due(user, params_hash, _bytes(search_params), fetched, bool(wanted), now)
        for user, params_hash, search_params, fetched, wanted, now in found[0]
    ]


def _listed(found: list[Rows]) -> list[Listed]:
    return [Listed._make((*row[:3], bool(row[3]), *row[4:])) for row in found[0]]


def _top(found: list[Rows]) -> list[Top]:
    return [Top._make(row) for row in found[0]]


def _cleared(found: list[Rows]) -> list[str]:
    return [str(row[0]) for row in found[0]]


def _figures(found: list[Rows]) -> dict[str, Any]:
    [[entries, values, streak, streak_max, hot, warm, fresh, usable, _]] = found[0]
    [[degraded]], [[fetching]], [answers] = found[1:]
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
        "last_24_hours": Answers(*answers).as_dict(),
    }


NO_FIGURES: Final[dict[str, Any]] = dict.fromkeys(
    (
        *("entries", "degraded_keys_count", "avg_fail_streak", "max_fail_streak", "fetching", "priorities"),
        *("ages", "last_24_hours"),
    )
)
"""What is known of a table that cannot be read."""
