"""Builds the dashboard's document: the state of the whole fleet, the same at every worker.

It reads shared state from the store and stored data from the database (``database_snapshot``), never from the
memory of this worker. A part that cannot be read is ``None``, with a reason; the other parts are unaffected.
While the store is unreachable, the document contains the last known status (``status_memory``), and ``as_of``
says when it was read. The document may be public: it names no user, no search, and no job by its full id.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from comporta import __version__
from comporta.breaker.admission import worker_name
from comporta.fleet import fleet_history_flow, fleet_status_flow, upstream_summary
from comporta.fleet.summary import fleet_reasons
from comporta.flow import run, run_async
from comporta.limits.leases.client import leased_units
from comporta.service.dashboard.database_snapshot import FastSnapshot, SlowSnapshot, Snapshot
from comporta.service.dashboard.redaction import redact_event, redact_text, redact_upstream
from comporta.service.health import (
    FAIL,
    OK,
    WARN,
    HealthSummary,
    answer_problem,
    read_source_answers,
    read_upstream_states,
    store_status,
)
from comporta.service.problems import HttpProblem
from comporta.settings.field_types import without_credentials
from comporta.stores.failover.worker_registry import Worker

if TYPE_CHECKING:
    from comporta.service.container import Container
    from comporta.service.dashboard.database_snapshot import DatabaseSnapshot
    from comporta.service.dashboard.status_memory import LastKnownFleet
    from comporta.service.sources.last_answers import LastAnswers
    from comporta.stores.base import Store
    from comporta.upstream.health import UpstreamState

_ENCODER = msgspec.json.Encoder()


async def encode_document(
    container: Container, snapshot: DatabaseSnapshot, last_known: LastKnownFleet
) -> bytes:
    """Return the document as JSON."""
    return _ENCODER.encode(await build_document(container, snapshot, last_known))


async def encode_history(container: Container, last_known: LastKnownFleet) -> bytes:
    """Return an hour of history as JSON; built on a thread, because twenty upstreams take 0.3 s."""
    return await asyncio.to_thread(_encode_history, container.store, last_known)


def _encode_history(store: Store, last_known: LastKnownFleet) -> bytes:
    return msgspec.json.encode(last_known.complete_history(run(fleet_history_flow(store))))


async def build_document(
    container: Container, snapshot: DatabaseSnapshot, last_known: LastKnownFleet
) -> dict[str, Any]:
    """Return the document."""
    upstreams = await read_upstream_states(container)
    fast, slow = await snapshot.fast.get(), await snapshot.slow.get()
    database = _database_json(container, fast.error)
    answers = await read_source_answers(container)
    health = HealthSummary.from_states(upstreams, answers, container.store.fallback, database)
    summaries = upstream_summaries(container, upstreams, answers)
    status = await run_async(fleet_status_flow(container.store, summaries))
    now = time.time()
    fleet, as_of = last_known.complete(status, now)
    all_reasons = (
        *health.outages,
        *fleet_reasons(fleet["upstreams"]),
        *health.reasons,
        *_cache_reasons(fast, slow),
        *map(redact_text, fleet["reasons"]),
    )
    reasons = list(dict.fromkeys(all_reasons))
    return {
        "at": now,
        "as_of": as_of,
        "worker": worker_name(),
        "version": __version__,
        "status": WARN if reasons and health.status == OK else health.status,
        "reasons": reasons,
        "state": _store_json(container),
        "database": database,
        "upstreams": [redact_upstream(summary) for summary in fleet["upstreams"]],
        "workers": _workers_json(container, fleet, fast, slow),
        "cache": _cache_json(fleet["minutes"].get("cache"), fast, slow),
        "jobs": None if fast.value is None else fast.value.jobs,
        "events": fleet["events"] and [redact_event(event) for event in fleet["events"]],
        "story": fleet["story"],
        "demo": await _demo_json(container),
        "admin": container.config.admin_token is not None or container.authenticator.tokens is not None,
        "recent": fleet["recent"],
    }


def _cache_reasons(fast: Snapshot[FastSnapshot], slow: Snapshot[SlowSnapshot]) -> list[str]:
    """Return why only the cache is missing: the statistics of a large one may take too long."""
    if fast.error is not None or slow.error is None:
        return []
    return [f"the cache cannot be read: {slow.error}"]


def upstream_summaries(
    container: Container, upstreams: list[UpstreamState], answers: dict[str, LastAnswers]
) -> dict[str, dict[str, Any]]:
    """Return the current summaries of our upstreams; their last minute is read with the fleet status."""
    summaries = {}
    for state in upstreams:
        upstream = container.upstreams[state.name]
        breaker, permits = upstream.breaker, upstream.permits
        summaries[state.name] = upstream_summary(
            state,
            {},
            breaker=None if breaker is None else breaker.config,
            in_flight_max=None if permits is None else permits.max_concurrent,
        )
        problem = answer_problem(state, answers.get(state.name))
        if problem:
            summaries[state.name]["in_words"] += f" The portal {problem}."
    return summaries


def _database_json(container: Container, error: str | None) -> dict[str, Any]:
    """Return whether the latest query succeeded; the document does not wait for another one."""
    return {"status": OK if error is None else FAIL, "engine": container.database.dialect, "reason": error}


def _store_json(container: Container) -> dict[str, Any]:
    status = store_status(container)
    if status["fallback"] is not None:
        status["fallback"]["reason"] = without_credentials(status["fallback"]["reason"])
    return status


def _workers_json(
    container: Container, fleet: dict[str, Any], fast: Snapshot[FastSnapshot], slow: Snapshot[SlowSnapshot]
) -> list[dict[str, Any]] | None:
    """Return the workers with the fetches and jobs that each runs; ``None`` without a database."""
    workers = fleet["workers"]
    if workers is None:
        return None
    fetches = None if slow.value is None else slow.value.fetches
    jobs = None if fast.value is None else fast.value.jobs_per_worker
    return [
        {
            **worker,
            "fetches": None if fetches is None else fetches.get(worker["name"], 0),
            "jobs": None if jobs is None else jobs.get(worker["name"], 0),
        }
        for worker in workers or [_this_worker(container, fleet["upstreams"])]
    ]


def _this_worker(container: Container, upstreams: list[dict[str, Any]]) -> dict[str, Any]:
    """Return this worker, for a store that is local and lists no workers."""
    this = Worker.new()
    return {
        "name": f"{this.host}:{this.pid}",
        "host": this.host,
        "pid": this.pid,
        "started": int(container.started_at),
        "last_heartbeat": 0.0,
        "probes": [summary["name"] for summary in upstreams if worker_name() in summary["probes"]],
        "permits": {summary["name"]: summary["in_flight"] for summary in upstreams if summary["in_flight"]},
        "leases": leased_units(container.store),
    }


def _cache_json(
    minute: dict[str, Any] | None, fast: Snapshot[FastSnapshot], slow: Snapshot[SlowSnapshot]
) -> dict[str, Any] | None:
    if fast.value is None or slow.value is None:
        return None
    stats = slow.value.stats
    day = stats["last_24_hours"]
    return {
        "hit_rate": day["hit_rate"],
        "stale_served_rate": day["stale_rate"],
        **{name: stats[name] for name in ("entries", "degraded_keys_count", "avg_fail_streak", "fetching")},
        "minute": minute,
        "degraded": fast.value.degraded,
        "coverage": slow.value.coverage,
    }


async def _demo_json(container: Container) -> dict[str, Any] | None:
    """Return the modes of the simulated portals; ``None`` if there are none or they do not respond."""
    try:
        return None if container.demo is None else await container.demo.modes()
    except HttpProblem:
        return None
