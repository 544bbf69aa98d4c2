"""What ``comporta doctor`` finds, and the checks that every kind of state goes through.

A check looks at one thing and returns one finding: good; to mind, if it works but somebody should know; to
mend, if limits do not work or do not hold. What is peculiar to a kind of state is in ``server_checks.py`` and
``shared_checks.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

from comporta.clock import MONOTONIC
from comporta.errors import StateError
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.limiter import BaseLimiter, SyncLimiter
from comporta.stores.base import Store
from comporta.stores.workers import Roll

CALLS = 200
"""How many calls are timed: enough for a ninety-ninth percentile, over in a moment."""

_ONE_IN_AN_HOUR = LimitConfig(rate=1 / 3600, capacity=1, window=3600)


class Finding(NamedTuple):
    """What one check found."""

    check: str
    verdict: Literal["good", "mind", "mend"]
    detail: str


def good(check: str, detail: str) -> Finding:
    """All is well with it."""
    return Finding(check, "good", detail)


def mind(check: str, detail: str) -> Finding:
    """It works, but somebody should know."""
    return Finding(check, "mind", detail)


def mend(check: str, detail: str) -> Finding:
    """Limits do not work, or do not hold, until this is mended."""
    return Finding(check, "mend", detail)


def throw_away_name() -> str:
    """Return a name that nobody uses."""
    return f"comporta_doctor-{uuid.uuid4().hex}"


def throw_away_limiter(store: Store, strategy: LimitStrategy) -> SyncLimiter:
    """Return a limit that nobody uses: one in an hour."""
    return BaseLimiter(replace(_ONE_IN_AN_HOUR, strategy=strategy), store, throw_away_name()).sync


def timed(call: Callable[[], object]) -> list[float]:
    """Return how many milliseconds each of some calls took, the quickest first."""
    found = []
    for _ in range(CALLS):
        began_ns = MONOTONIC.now_ns()
        call()
        found.append((MONOTONIC.now_ns() - began_ns) / 1e6)
    return sorted(found)


def promptness(times_ms: list[float], deadline: float) -> Finding:
    """Hold the times of some calls, the quickest first, against the deadline (seconds) in force."""
    middle, late = times_ms[len(times_ms) // 2], times_ms[-(-len(times_ms) * 99 // 100) - 1]
    allowed_ms = deadline * 1000
    detail = (
        f"p50 {middle:.2f} ms, p99 {late:.2f} ms, max {times_ms[-1]:.2f} ms; "
        f"a decision may take {allowed_ms:g} ms"
    )
    if late > allowed_ms:
        return mend("latency", f"{detail}: too slow, workers would go on alone; come nearer, or allow more")
    if late > allowed_ms / 2:
        return mind("latency", f"{detail}: little is left of it")
    return good("latency", detail)


def decisions(store: Store) -> Finding:
    """Decide for real, with each strategy, on limits that are thrown away."""
    for strategy in LimitStrategy:
        try:
            answers = _decided(store, strategy)
        except StateError as error:
            return mend("decisions", f"{strategy.value}: {error}")
        if answers != [True, False]:
            return mend(
                "decisions", f"{strategy.value}: asked twice for the one there is, answered {answers}"
            )
    return good("decisions", "all strategies decide as they should")


def _decided(store: Store, strategy: LimitStrategy) -> list[bool]:
    """Ask a limit for one more than it has; on a server, each verb has a script of its own."""
    limiter = throw_away_limiter(store, strategy)
    try:
        return [limiter.acquire(), limiter.decide().allowed]
    finally:
        limiter.reset()


def workers(store: Store) -> Finding:
    """Count who is there."""
    try:
        count = len(store.apply(Roll()))
    except StateError as error:
        return mend("workers", f"cannot be counted, so each would take its share for the whole: {error}")
    return good("workers", f"{count} alive; `comporta workers` lists them" if count else "none at the moment")
