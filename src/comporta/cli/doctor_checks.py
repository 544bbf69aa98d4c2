"""Findings of ``comporta doctor``, and the checks that apply to every kind of state.

A check examines one thing and returns one finding: ``ok``; ``warn``, if it works but needs attention; or
``fail``, if limits do not work or may be exceeded. Checks for one kind of state are in ``doctor_redis`` and
``doctor_shared``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.limiter import BaseLimiter
from comporta.limits.sync_limiter import SyncLimiter
from comporta.stores.base import Store
from comporta.stores.failover.worker_registry import ListWorkers

CALLS = 200
"""How many calls are timed: enough for a 99th percentile, few enough to take only a moment."""

_ONE_IN_AN_HOUR = LimitConfig(rate=1 / 3600, capacity=1, window=3600)


class Finding(NamedTuple):
    """The result of one check."""

    check: str
    status: Literal["ok", "warn", "fail"]
    detail: str


def ok(check: str, detail: str) -> Finding:
    """Return a finding that everything is fine."""
    return Finding(check, "ok", detail)


def warn(check: str, detail: str) -> Finding:
    """Return a finding that works but needs attention."""
    return Finding(check, "warn", detail)


def fail(check: str, detail: str) -> Finding:
    """Return a finding that must be fixed before limits work and hold."""
    return Finding(check, "fail", detail)


def temporary_name() -> str:
    """Return a unique name for keys that the checks create."""
    return f"comporta_doctor-{uuid.uuid4().hex}"


def temporary_limiter(store: Store, strategy: LimitStrategy) -> SyncLimiter:
    """Return a limiter with a unique name that allows one call per hour."""
    return BaseLimiter(replace(_ONE_IN_AN_HOUR, strategy=strategy), store, temporary_name()).sync


def call_times_ms(call: Callable[[], object]) -> list[float]:
    """Return the duration of ``CALLS`` calls in milliseconds, the fastest first."""
    times_ms = []
    for _ in range(CALLS):
        began_ns = MONOTONIC.now_ns()
        call()
        times_ms.append((MONOTONIC.now_ns() - began_ns) / 1e6)
    return sorted(times_ms)


def latency_finding(times_ms: list[float], deadline: float) -> Finding:
    """Compare the durations of calls, the fastest first, with the time-out of a decision in seconds."""
    p50, p99 = times_ms[len(times_ms) // 2], times_ms[-(-len(times_ms) * 99 // 100) - 1]
    allowed_ms = deadline * 1000
    detail = (
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, max {times_ms[-1]:.2f} ms; "
        f"the time-out of a decision is {allowed_ms:g} ms"
    )
    if p99 > allowed_ms:
        advice = "workers would fall back to local shares; use a nearer server or a longer ?timeout="
        return fail("latency", f"{detail}: too slow, {advice}")
    if p99 > allowed_ms / 2:
        return warn("latency", f"{detail}: more than half of it is used")
    return ok("latency", detail)


def check_decisions(store: Store) -> Finding:
    """Make real decisions with each strategy, on temporary limits."""
    for strategy in LimitStrategy:
        try:
            answers = _try_strategy(store, strategy)
        except StateError as error:
            return fail("decisions", f"{strategy.value}: {error}")
        if answers != [True, False]:
            return fail(
                "decisions", f"{strategy.value}: expected [True, False] for a limit of 1, got {answers}"
            )
    return ok("decisions", "all strategies decide correctly")


def _try_strategy(store: Store, strategy: LimitStrategy) -> list[bool]:
    """Acquire twice from a limit of 1, by ``acquire`` and by ``decide``: each has its own script."""
    limiter = temporary_limiter(store, strategy)
    try:
        return [limiter.acquire(), limiter.decide().allowed]
    finally:
        limiter.reset()


def check_workers(store: Store) -> Finding:
    """Count the live workers."""
    try:
        count = len(store.apply(ListWorkers()))
    except StateError as error:
        return fail("workers", f"cannot be counted, so in an outage each would use the whole limit: {error}")
    return ok("workers", f"{count} alive; `comporta workers` lists them" if count else "no live workers")
