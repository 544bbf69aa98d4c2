"""Combined policies: retry, breaker and timeout around one call; and an upstream, which has all policies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks import breaker_peers, ours, server
from benchmarks.breaker_peers import (
    BARE,
    COOLDOWN_SECONDS,
    RETRIES,
    THRESHOLD,
    TIMEOUT_SECONDS,
    nothing,
    nothing_async,
)
from benchmarks.breakers import time_contenders, time_contenders_async
from benchmarks.measure import Contender, Effort, Timings
from benchmarks.report import Goal, Section, Table
from benchmarks.state import shared_state
from comporta import CircuitBreaker, LimitConfig, Retry, Upstream
from comporta.timeouts import Timeouts

_OURS = f"{ours.COMPORTA} @retry @breaker, with timeouts"
_PLENTY = 10_000_000
_CONCURRENT = 100
_SHARED = "shared://"
_WITH_PERMITS = "shared://, max_concurrent"


def composed(effort: Effort) -> Section:
    """Compare retry, breaker and timeout around a successful asynchronous call."""
    everything = _upstream().guard(nothing_async)
    contenders: list[Contender | Callable[[], Contender]] = [
        Contender(ours.COMPORTA, "@retry @breaker, with timeouts", _composed()),
        Contender(ours.COMPORTA, "Upstream.guard, limit and report as well", everything),
        *breaker_peers.composed(),
    ]
    timings = time_contenders_async(contenders, effort)
    rivals = [n for n in timings.rates if n.startswith((breaker_peers.PYRESILIENCE, breaker_peers.HYX))]
    promise = "retry, breaker and timeout, awaiting: the cheaper of pyresilience and hyx"
    return Section(
        "Retry, breaker and timeout together",
        f"One event loop. {RETRIES} retries around a breaker around a timeout of {TIMEOUT_SECONDS:g} s for "
        "each attempt, around a function that does nothing; the first attempt succeeds. State in the "
        "process. `Upstream.guard` also takes from a limit, obeys the upstream's rate-limit headers and "
        "reports on the call. hyx with its timeout as a decorator, which creates a task, and as a block, "
        "which creates a timer.",
        [Table.of_costs("A call that succeeds", timings, _OURS)],
        [Goal.at_most(0.5, promise, timings, _OURS, rivals)],
    )


def upstream(effort: Effort) -> Section:
    """Show the cost of all policies of an upstream; no peer has them all."""
    section = Section(
        "Upstream",
        "All default policies of an upstream (retry, breaker, limit, degradation, pause, timeout) around a "
        "function that does nothing, within the limit. With a server each call takes one round trip, for "
        "the limit and a permit together; with a lease, one call in many does. A permit of a call that has "
        "ended is used again within 10 ms, else it is released in the background. Client and server are "
        "pinned to one core. No peer has all of these policies.",
    )
    with server.pinned() as url, shared_state() as state:
        variants = {
            "memory://": _upstream,
            _SHARED: partial(_upstream, state),
            _WITH_PERMITS: partial(_upstream, state, max_concurrent=_CONCURRENT),
            "redis://": partial(_upstream, ours.with_long_timeout(url)),
            "redis://, max_concurrent": partial(
                _upstream, ours.with_long_timeout(url), max_concurrent=_CONCURRENT
            ),
            "redis://, leased": partial(_upstream, ours.with_long_timeout(url), lease=True),
        }
        _record(section, "Blocking", _blocking(effort, variants))
        _record(section, "Awaiting", _awaiting(effort, variants))
    return section


def _composed() -> Any:
    timeouts = Timeouts(TIMEOUT_SECONDS)

    @Retry(RETRIES)
    @CircuitBreaker("composed", THRESHOLD, COOLDOWN_SECONDS, state="memory://")
    async def call(key: str) -> bool:
        with timeouts.context():
            return await nothing_async(key)

    return call


def _upstream(
    state: str = "memory://", *, lease: bool = False, max_concurrent: int | None = None
) -> Upstream:
    limit = LimitConfig(_PLENTY, _PLENTY, lease=lease)
    name = "leased" if lease else "exact" if max_concurrent is None else "permits"
    return Upstream(name, limit, timeout=TIMEOUT_SECONDS, max_concurrent=max_concurrent, state=state)


def _blocking(effort: Effort, variants: dict[str, Any]) -> Timings:
    contenders = [Contender("Upstream.guard", name, make().guard(nothing)) for name, make in variants.items()]
    return time_contenders([*contenders, Contender(BARE, "", nothing)], effort)


def _awaiting(effort: Effort, variants: dict[str, Any]) -> Timings:
    contenders = [_async_contender(name, make()) for name, make in variants.items()]
    return time_contenders_async([*contenders, Contender(BARE, "", nothing_async)], effort)


def _async_contender(name: str, upstream_: Upstream) -> Contender:
    return Contender("Upstream.guard", name, upstream_.guard(nothing_async), aclose=upstream_.aclose)


def _record(section: Section, title: str, timings: Timings) -> None:
    section.tables.append(Table.of_costs(title, timings, "Upstream.guard memory://"))
    promise = f"a call with max_concurrent on shared://, {title.lower()}: the call without"
    goal = Goal.at_most(
        2.5, promise, timings, f"Upstream.guard {_WITH_PERMITS}", [f"Upstream.guard {_SHARED}"]
    )
    section.goals.append(goal)
