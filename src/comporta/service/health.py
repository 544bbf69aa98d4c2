"""How the service fares, read from the state that all workers share and not from what this one thinks.

``ok``: all is well. ``warn``: it serves, and somebody should know why not as usual: a source is open, paused
or lowered, or this worker is on its own. ``fail``: what it keeps cannot be kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta import __version__
from comporta.breaker.admission import owner
from comporta.cache.table import CacheTable
from comporta.database.base import Statement
from comporta.errors import DatabaseError, StateError
from comporta.stores.failover import FailoverStore, Fallback, fallback_of
from comporta.stores.workers import Roll

if TYPE_CHECKING:
    from comporta.service.parts import Parts
    from comporta.stores.base import Store
    from comporta.upstream.standing import UpstreamState

OK, WARN, FAIL = "ok", "warn", "fail"
FIRST: Final = "pncp"
"""The source whose figures stand by themselves in ``rate_limiter``, as clients know them."""

TOP_KEYS: Final = 10
DATABASE_SECONDS: Final = 2.0

_ANYTHING = Statement("SELECT 1")
_WORSE = (OK, WARN, FAIL)


async def health_of(parts: Parts) -> dict[str, Any]:
    """Return the whole picture."""
    standings, database = await asyncio.gather(standings_of(parts), _database(parts))
    seen = Verdict.of(standings, fallback_of(parts.store), database)
    return {
        "status": seen.status,
        "reasons": seen.reasons,
        **{f"{state.name}_circuit_breaker": _breaker(state) for state in standings},
        "rate_limiter": _limiters(standings),
        "sources": seen.sources,
        "workers": {"alive": await alive(parts.store)},
        "state": {"status": WARN if seen.fallback else OK, **state_of(parts)},
        "database": database,
        "worker": {"name": owner(), "started": parts.started},
        "version": __version__,
    }


class Verdict(NamedTuple):
    """What all of it comes to, and why it is not better."""

    status: str
    reasons: list[str]
    sources: dict[str, dict[str, Any]]
    fallback: Fallback | None

    @classmethod
    def of(
        cls, standings: Sequence[UpstreamState], fallback: Fallback | None, database: Mapping[str, Any]
    ) -> Verdict:
        """Judge what was found."""
        sources = {state.name: _source(state) for state in standings}
        reasons = [
            *(reason for found in sources.values() for reason in found["reasons"]),
            *(["the shared state is out of reach"] if fallback else []),
            *(["the database is out of reach"] if database["status"] != OK else []),
        ]
        statuses = [OK, *(str(found["status"]) for found in sources.values())]
        worst = max(WARN if fallback else OK, database["status"], *statuses, key=_WORSE.index)
        return cls(worst, reasons, sources, fallback)


async def standings_of(parts: Parts) -> list[UpstreamState]:
    """Ask the state how each upstream stands."""
    return await asyncio.gather(*(upstream.get_state() for upstream in parts.upstreams.values()))


def state_of(parts: Parts) -> dict[str, Any]:
    """Return which state it is, and whether this worker is on its own."""
    return {"engine": engine(parts), "fallback": _fallback(fallback_of(parts.store))}


async def cache_health_of(parts: Parts) -> dict[str, Any]:
    """Return how the keys of the cache fare, and which are asked for most; nobody's name is in it."""
    figures, top = await asyncio.gather(parts.cache.figures(), CacheTable(parts.database).top_async(TOP_KEYS))
    keys = [
        {
            "params_hash": key.params_hash,
            "accesses": key.accesses,
            "users": key.users,
            "age_seconds": max(0.0, round(key.now - key.fetched_at, 3)),
            "fail_streak": key.fail_streak,
        }
        for key in top
    ]
    return {**figures, "top_keys": keys}


async def alive(store: Store) -> int:
    """Return how many workers share the state; while nobody can count, as many as there were last."""
    try:
        return max(1, len(await store.apply_async(Roll())))
    except StateError:
        return store.workers if isinstance(store, FailoverStore) else 1


def engine(parts: Parts) -> str:
    """Return the kind of state: ``memory``, ``shared``, ``redis``, ..."""
    return parts.config.state.partition("://")[0]


def _breaker(state: UpstreamState) -> dict[str, Any]:
    breaker = state.breaker
    if breaker is None:
        return {"failures": 0, "degraded": False, "degraded_until": None}
    return {
        "failures": breaker.failures,
        "degraded": breaker.degraded,
        "degraded_until": breaker.degraded_until,
    }


def _limiters(standings: list[UpstreamState]) -> dict[str, Any]:
    sources = {
        state.name: {
            "tokens_available": state.limiter.tokens_available,
            "requests_last_minute": state.limiter.requests_last_minute,
            "limit_per_second": state.limit,
            "paused_seconds": state.limiter.paused,
        }
        for state in standings
    }
    first = sources.get(FIRST, {"tokens_available": None, "requests_last_minute": None})
    flat = {name: first[name] for name in ("tokens_available", "requests_last_minute")}
    return {**flat, "sources": sources}


def _source(state: UpstreamState) -> dict[str, Any]:
    breaker = state.breaker
    reasons = [
        *([f"{state.name} is open"] if breaker and breaker.degraded else []),
        *([f"{state.name} is paused"] if state.limiter.paused else []),
        *([f"{state.name} is slowed down"] if state.limit < state.original else []),
    ]
    return {
        "status": WARN if reasons else OK,
        "reasons": reasons,
        "phase": None if breaker is None else breaker.phase,
        "forced": None if breaker is None else breaker.forced,
        "limit_per_second": state.limit,
        "original_limit_per_second": state.original,
        "configured_limit_per_second": state.configured,
        "calls_in_flight": state.calls_in_flight,
        "retries_last_minute": state.retries_last_minute,
    }


async def _database(parts: Parts) -> dict[str, Any]:
    """Ask the database for anything at all."""
    dialect = parts.database.dialect
    try:
        async with asyncio.timeout(DATABASE_SECONDS):
            await parts.database.read_async(_ANYTHING, {})
    except (DatabaseError, TimeoutError) as error:
        return {"status": FAIL, "engine": dialect, "why": type(error).__name__}
    return {"status": OK, "engine": dialect, "why": None}


def _fallback(found: Fallback | None) -> dict[str, Any] | None:
    return None if found is None else found._asdict()
