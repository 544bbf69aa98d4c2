"""Health of the service, read from the shared store and the database rather than from local memory.

``ok``: everything works. ``warn``: the service works but is impaired or overridden: a source's circuit is not
closed, the source is paused, slowed down or does not answer, an operator holds its breaker or changed its
limit, this worker is in fallback, or a disk is full. ``fail``: the database is unreachable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from comporta import __version__
from comporta.breaker.admission import worker_name
from comporta.cache.tables import CacheTables
from comporta.clock import MONOTONIC
from comporta.database.base import Statement
from comporta.errors import DatabaseError, StateError
from comporta.fleet.reader import UNREACHABLE
from comporta.fleet.summary import status_reasons, upstream_summary
from comporta.service.sources.last_answers import LastAnswers, read_answers
from comporta.stores.failover.worker_registry import ListWorkers
from comporta.stores.outage_info import Fallback

if TYPE_CHECKING:
    from comporta.limits.decision import Stats
    from comporta.service.container import Container
    from comporta.stores.base import Store
    from comporta.upstream.health import UpstreamState

OK, WARN, FAIL = "ok", "warn", "fail"
MAIN_SOURCE: Final = "pncp"
"""The source whose numbers also appear at the top level of ``rate_limiter``."""

CACHE_SECONDS: Final = 1.0
TOP_KEYS: Final = 10
DATABASE_TIMEOUT_SECONDS: Final = 2.0

_PING = Statement("SELECT 1")
_SEVERITY = (OK, WARN, FAIL)


class CachedHealth:
    """The document of ``/v1/health``, computed at most once a second however many clients ask."""

    def __init__(self, seconds: float = CACHE_SECONDS) -> None:
        self._seconds = seconds
        self._computed_at = float("-inf")
        self._computing: asyncio.Task[dict[str, Any]] | None = None

    async def get(self, container: Container) -> dict[str, Any]:
        """Return a document that is at most a second old; clients that ask meanwhile share one."""
        now = MONOTONIC.now_ns() / 1e9
        if self._computing is None or now - self._computed_at >= self._seconds:
            self._computed_at = now
            self._computing = asyncio.create_task(read_health(container))
        return await asyncio.shield(self._computing)


async def read_health(container: Container) -> dict[str, Any]:
    """Return the document of ``/v1/health``."""
    upstreams, answers, database, disk = await asyncio.gather(
        read_upstream_states(container),
        read_source_answers(container),
        _database_status(container),
        container.disk_check.run(),
    )
    summary = HealthSummary.from_states(upstreams, answers, container.store.fallback, database, disk)
    return {
        "status": summary.status,
        "reasons": summary.reasons,
        **{f"{state.name}_circuit_breaker": _breaker_json(state) for state in upstreams},
        "rate_limiter": _limiters_json(upstreams),
        "sources": summary.sources,
        "workers": {"alive": await live_worker_count(container.store)},
        "state": {"status": WARN if summary.fallback else OK, **store_status(container)},
        "database": database,
        "disk": {"status": WARN if disk else OK, "reasons": disk},
        "worker": {"name": worker_name(), "started": container.started_at},
        "version": __version__,
    }


class HealthSummary(NamedTuple):
    """The overall status, and the reasons why it is not ``ok``: first the outages of store and database."""

    status: str
    reasons: list[str]
    sources: dict[str, dict[str, Any]]
    fallback: Fallback | None
    outages: list[str]

    @classmethod
    def from_states(
        cls,
        upstreams: Sequence[UpstreamState],
        answers: Mapping[str, LastAnswers],
        fallback: Fallback | None,
        database: Mapping[str, Any],
        disk: Sequence[str] = (),
    ) -> HealthSummary:
        """Summarize the upstreams, the store, the database and the disk: the worst status is the overall one.

        ``disk`` says where nothing can be written, and why.
        """
        sources = {state.name: _source_json(state, answers.get(state.name)) for state in upstreams}
        outages = [
            *(["the database is unreachable"] if database["status"] != OK else []),
            *([UNREACHABLE] if fallback else []),
        ]
        source_reasons = [reason for source in sources.values() for reason in source["reasons"]]
        reasons = [*outages, *source_reasons, *disk]
        statuses = [OK, *(str(source["status"]) for source in sources.values())]
        worst = max(WARN if fallback or disk else OK, database["status"], *statuses, key=_SEVERITY.index)
        return cls(worst, reasons, sources, fallback, outages)


async def read_upstream_states(container: Container) -> list[UpstreamState]:
    """Read the state of each upstream from the store."""
    return await asyncio.gather(*(upstream.get_state() for upstream in container.upstreams.values()))


async def read_source_answers(container: Container) -> dict[str, LastAnswers]:
    """Read what each source answered last from the store."""
    names = list(container.sources)
    read = await asyncio.gather(*(read_answers(container.store, name) for name in names))
    return dict(zip(names, read, strict=True))


def store_status(container: Container) -> dict[str, Any]:
    """Return the store's engine and, during an outage, the fallback of this worker."""
    return {"engine": store_engine(container), "fallback": _fallback_json(container.store.fallback)}


async def read_cache_health(container: Container) -> dict[str, Any]:
    """Return the document of ``/v1/health/cache``: statistics and the most used keys, without user names."""
    stats, top = await asyncio.gather(
        container.cache.stats(), CacheTables(container.database).list_top_async(TOP_KEYS)
    )
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
    return {**stats, "top_keys": keys}


async def live_worker_count(store: Store) -> int:
    """Return how many workers share the store; during an outage, the last known count."""
    try:
        return max(1, len(await store.apply_async(ListWorkers())))
    except StateError:
        return store.worker_count or 1


def store_engine(container: Container) -> str:
    """Return the engine of the store: ``memory``, ``shared``, ``redis``, ..."""
    return container.config.state.partition("://")[0]


def _breaker_json(state: UpstreamState) -> dict[str, Any]:
    breaker = state.breaker
    if breaker is None:
        return {"failures": 0, "degraded": False, "degraded_until": None}
    return {
        "failures": breaker.failures,
        "degraded": breaker.degraded,
        "degraded_until": breaker.degraded_until,
    }


def _limiters_json(upstreams: list[UpstreamState]) -> dict[str, Any]:
    sources = {
        state.name: {**_limit_json(state.limiter, state.limit), **_all_limits_json(state)}
        for state in upstreams
    }
    main = sources.get(MAIN_SOURCE, {"tokens_available": None, "requests_last_minute": None})
    top_level = {name: main[name] for name in ("tokens_available", "requests_last_minute")}
    return {**top_level, "sources": sources}


def _limit_json(stats: Stats, per_second: float) -> dict[str, Any]:
    return {
        "tokens_available": stats.tokens_available,
        "requests_last_minute": stats.requests_last_minute,
        "limit_per_second": per_second,
        "paused_seconds": stats.paused,
    }


def _all_limits_json(state: UpstreamState) -> dict[str, Any]:
    """Return the limits by name of an upstream that has several."""
    if not state.limits:
        return {}
    return {"limits": {limit.name: _limit_json(limit.stats, limit.limit) for limit in state.limits}}


def answer_problem(state: UpstreamState, answers: LastAnswers | None) -> str | None:
    """Return what is wrong with the answers of a source, unless its open circuit already says so."""
    is_open = state.breaker is not None and state.breaker.degraded
    return None if answers is None or is_open else answers.problem()


def _source_json(state: UpstreamState, answers: LastAnswers | None) -> dict[str, Any]:
    breaker = state.breaker
    problem = answer_problem(state, answers)
    reasons = [
        *status_reasons(upstream_summary(state, {})),
        *([f"{state.name} {problem}"] if problem else []),
    ]
    return {
        "status": WARN if reasons else OK,
        "reasons": reasons,
        "phase": None if breaker is None else breaker.phase,
        "forced": None if breaker is None else breaker.forced,
        "limit_per_second": state.limit,
        "original_limit_per_second": state.original,
        "configured_limit_per_second": state.configured,
        "limit": state.limit_text,
        "configured_limit": state.configured_text,
        "calls_in_flight": state.calls_in_flight,
        "retries_last_minute": state.retries_last_minute,
        "last_page_at": None if answers is None else answers.page_at,
    }


async def _database_status(container: Container) -> dict[str, Any]:
    """Ping the database."""
    dialect = container.database.dialect
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_SECONDS):
            await container.database.read_async(_PING, {})
    except (DatabaseError, TimeoutError) as error:
        return {"status": FAIL, "engine": dialect, "reason": type(error).__name__}
    return {"status": OK, "engine": dialect, "reason": None}


def _fallback_json(fallback: Fallback | None) -> dict[str, Any] | None:
    if fallback is None:
        return None
    return {"since": fallback.since, "reason": fallback.reason, "workers": fallback.worker_count}
