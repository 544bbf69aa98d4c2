"""The document: how the whole fleet fares, as any of its workers can tell it.

What all workers share is read from the state, what they keep from the database (``kept``); nothing in it is
what this worker thinks by itself. Where a part cannot be had it is ``None``, with a reason, and the rest is
there. Anybody may read it: it names no user, no search, and no job that could be asked for.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec

from comporta import __version__
from comporta.breaker.admission import owner
from comporta.flow import run, run_async
from comporta.limits.leased import on_lease
from comporta.service.dashboard.discreet import discreet, of_upstream, plain
from comporta.service.dashboard.kept import Look, Moving, Standing
from comporta.service.health import FAIL, OK, WARN, Verdict, standings_of, state_of
from comporta.service.problems import Problem
from comporta.settings.kinds import hidden
from comporta.stores.failover import fallback_of
from comporta.stores.workers import Worker
from comporta.watching import card, looking, recalling

if TYPE_CHECKING:
    from comporta.service.dashboard.kept import Kept
    from comporta.service.parts import Parts
    from comporta.stores.base import Store
    from comporta.upstream.standing import UpstreamState

_ENCODER = msgspec.json.Encoder()


async def document_bytes(parts: Parts, kept: Kept) -> bytes:
    """Return the document as it is sent."""
    return _ENCODER.encode(await document_of(parts, kept))


async def history_bytes(parts: Parts) -> bytes:
    """Return an hour of numbers, as it is sent; on a thread: that of twenty upstreams takes 0.3 s."""
    return await asyncio.to_thread(_history_bytes, parts.store)


def _history_bytes(store: Store) -> bytes:
    return msgspec.json.encode(run(recalling(store)))


async def document_of(parts: Parts, kept: Kept) -> dict[str, Any]:
    """Return all of it."""
    standings = await standings_of(parts)
    moving, standing = await kept.moving.get(), await kept.standing.get()
    database = _database(parts, moving.why)
    verdict = Verdict.of(standings, fallback_of(parts.store), database)
    fleet = await run_async(looking(parts.store, _cards(parts, standings)))
    found = (*verdict.reasons, *_missing(moving, standing), *map(plain, fleet["reasons"]))
    reasons = list(dict.fromkeys(found))
    return {
        "at": time.time(),
        "version": __version__,
        "status": WARN if reasons and verdict.status == OK else verdict.status,
        "reasons": reasons,
        "state": _state(parts),
        "database": database,
        "upstreams": [of_upstream(shown) for shown in fleet["upstreams"]],
        "workers": _workers(parts, fleet, moving, standing),
        "cache": _cache(fleet["minutes"].get("cache"), moving, standing),
        "jobs": None if moving.found is None else moving.found.jobs,
        "events": fleet["events"] and [discreet(event) for event in fleet["events"]],
        "story": fleet["story"],
        "demo": await _demo(parts),
        "admin": parts.config.admin_token is not None,
        "recent": fleet["recent"],
    }


def _missing(moving: Look[Moving], standing: Look[Standing]) -> list[str]:
    """Say why the cache is not shown where it is only that: a large one may be slow to count."""
    gone = moving.why is not None or standing.why is None
    return [] if gone else [f"the cache cannot be looked at: {standing.why}"]


def _cards(parts: Parts, standings: list[UpstreamState]) -> dict[str, dict[str, Any]]:
    """Return how our upstreams stand, as asked just now; what their last minute was is read with the rest."""
    found = {}
    for state in standings:
        upstream = parts.upstreams[state.name]
        breaker, permits = upstream.breaker, upstream.permits
        found[state.name] = card(
            state,
            {},
            breaker=None if breaker is None else breaker.config,
            in_flight_max=None if permits is None else permits.max_concurrent,
        )
    return found


def _database(parts: Parts, why: str | None) -> dict[str, Any]:
    """Say whether the database answered when it was last looked at: nobody waits for another answer."""
    return {"status": OK if why is None else FAIL, "engine": parts.database.dialect, "why": why}


def _state(parts: Parts) -> dict[str, Any]:
    found = state_of(parts)
    if found["fallback"] is not None:
        found["fallback"]["why"] = hidden(found["fallback"]["why"])
    return found


def _workers(
    parts: Parts, fleet: dict[str, Any], moving: Look[Moving], standing: Look[Standing]
) -> list[dict[str, Any]] | None:
    """Add what each worker is at; nothing is known of that without a database."""
    workers = fleet["workers"]
    if workers is None:
        return None
    fetches = None if standing.found is None else standing.found.fetches
    jobs = None if moving.found is None else moving.found.at_jobs
    return [
        {
            **worker,
            "fetches": None if fetches is None else fetches.get(worker["name"], 0),
            "jobs": None if jobs is None else jobs.get(worker["name"], 0),
        }
        for worker in workers or [_alone(parts, fleet["upstreams"])]
    ]


def _alone(parts: Parts, upstreams: list[dict[str, Any]]) -> dict[str, Any]:
    """Return this worker, where the state is its own and lists nobody."""
    here = Worker.here()
    return {
        "name": f"{here.host}:{here.pid}",
        "host": here.host,
        "pid": here.pid,
        "started": int(parts.started),
        "heard": 0.0,
        "probes": [shown["name"] for shown in upstreams if owner() in shown["probes"]],
        "permits": {shown["name"]: shown["in_flight"] for shown in upstreams if shown["in_flight"]},
        "leases": on_lease(parts.store),
    }


def _cache(
    minute: dict[str, Any] | None, moving: Look[Moving], standing: Look[Standing]
) -> dict[str, Any] | None:
    if moving.found is None or standing.found is None:
        return None
    figures = standing.found.figures
    day = figures["last_24_hours"]
    return {
        "hit_rate": day["hit_rate"],
        "stale_served_rate": day["stale_rate"],
        **{name: figures[name] for name in ("entries", "degraded_keys_count", "avg_fail_streak", "fetching")},
        "minute": minute,
        "degraded": moving.found.degraded,
        "coverage": standing.found.coverage,
    }


async def _demo(parts: Parts) -> dict[str, Any] | None:
    """Return how simulated portals behave; one that does not answer is not shown."""
    try:
        return None if parts.demo is None else await parts.demo.modes()
    except Problem:
        return None
