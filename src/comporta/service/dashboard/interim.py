"""Stands in for ``comporta.watching`` until it is there."""

from __future__ import annotations

import time
from typing import Any

from comporta.stores.base import Store
from comporta.stores.workers import Roll
from comporta.upstream.standing import UpstreamState

_NONE = dict.fromkeys(("calls", "ok", "failed", "refused", "open", "limited", "retries"), 0)


def card(state: UpstreamState) -> dict[str, Any]:
    """A card."""
    breaker, stats = state.breaker, state.limiter
    return {
        "name": state.name,
        "phase": None if breaker is None else breaker.phase,
        "why": "",
        "since": None,
        "until": None if breaker is None else breaker.degraded_until,
        "forced": None if breaker is None else breaker.forced,
        "failures": 0 if breaker is None else breaker.failures,
        "threshold": 50,
        "share": 1.0,
        "tokens": stats.tokens_available,
        "capacity": stats.limit,
        "limit": state.limit,
        "original": state.original,
        "paused": stats.paused,
        "in_flight": state.calls_in_flight,
        "in_flight_max": 10,
        "in_words": "",
        "minute": {**_NONE, "wait_p50": None, "wait_p95": None, "wait_p99": None},
    }


async def looked(store: Store, standings: list[UpstreamState]) -> dict[str, Any]:
    """The fleet."""
    signs = await store.apply_async(Roll())
    return {
        "upstreams": [card(state) for state in standings],
        "workers": [
            {
                "name": f"{one.worker.host}:{one.worker.pid}",
                "host": one.worker.host,
                "pid": one.worker.pid,
                "started": one.worker.started,
                "heard": one.age,
                "probes": [],
                "permits": {},
            }
            for one in signs
        ],
        "events": [],
        "story": None,
        "recent": {},
        "cache_minute": {"hits": 0, "stale": 0, "misses": 0},
    }


async def recalled(_: Store) -> dict[str, Any]:
    """The history."""
    return {"slot_seconds": 10, "at": time.time(), "series": {}}
