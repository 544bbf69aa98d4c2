"""Policies joined: retry, breaker and time-out around one call; and an upstream, which has them all."""

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
from benchmarks.breakers import timed, timed_async
from benchmarks.measure import Contender, Effort, Timings
from benchmarks.report import Goal, Section, Table
from comporta import CircuitBreaker, LimitConfig, Retry
from comporta.timeouts import Timeouts
from comporta.upstream.upstream import Upstream

_OURS = f"{ours.COMPORTA} @retry @breaker, with timeouts"
_PLENTY = 10_000_000


def composed(effort: Effort) -> Section:
    """Compare retry, breaker and time-out around an awaited call that succeeds."""
    everything = _upstream().guard(nothing_async)
    found: list[Contender | Callable[[], Contender]] = [
        Contender(ours.COMPORTA, "@retry @breaker, with timeouts", _composed()),
        Contender(ours.COMPORTA, "Upstream.guard, limit and report as well", everything),
        *breaker_peers.composed(),
    ]
    timings = timed_async(found, effort)
    rivals = [n for n in timings.rates if n.startswith((breaker_peers.PYRESILIENCE, breaker_peers.HYX))]
    promise = "retry, breaker and time-out, awaiting: the cheaper of pyresilience and hyx"
    return Section(
        "Retry, breaker and time-out together",
        f"One event loop. {RETRIES} retries around a breaker around a time-out of {TIMEOUT_SECONDS:g} s for "
        "each try, around what does nothing; the first try succeeds. State in the process. "
        "`Upstream.guard` takes from a limit besides, follows the upstream's wishes and reports on the call. "
        "hyx with its time-out as a decorator, which makes a task, and as a block, which makes a timer.",
        [Table.of_costs("A call that succeeds", timings, _OURS)],
        [Goal.at_most(0.5, promise, timings, _OURS, rivals)],
    )


def upstream(effort: Effort) -> Section:
    """Show what all policies of an upstream cost a call; there is no peer."""
    section = Section(
        "Upstream",
        "All that an upstream has by default (retry, breaker, limit, degradation, pause, time-out) around "
        "what does nothing; there is room in the limit. Through a server each call is one round trip, for "
        "the limit; with a lease one in many. Client and server are pinned to one core. For the record: no "
        "peer has it all.",
    )
    with server.pinned() as url:
        variants = {
            "memory://": _upstream,
            "redis://": partial(_upstream, ours.patient(url)),
            "redis://, leased": partial(_upstream, ours.patient(url), lease=True),
        }
        _record(section, "Blocking", _blocking(effort, variants))
        _record(section, "Awaiting", _awaiting(effort, variants))
    return section


def _composed() -> Any:
    timeouts = Timeouts(TIMEOUT_SECONDS)

    @Retry(RETRIES)
    @CircuitBreaker("composed", THRESHOLD, COOLDOWN_SECONDS, state="memory://")
    async def call(key: str) -> bool:
        with timeouts.limit():
            return await nothing_async(key)

    return call


def _upstream(state: str = "memory://", *, lease: bool = False) -> Upstream:
    limit = LimitConfig(_PLENTY, _PLENTY, lease=lease)
    return Upstream("leased" if lease else "exact", limit, timeout=TIMEOUT_SECONDS, state=state)


def _blocking(effort: Effort, variants: dict[str, Any]) -> Timings:
    found = [Contender("Upstream.guard", name, make().guard(nothing)) for name, make in variants.items()]
    return timed([*found, Contender(BARE, "", nothing)], effort)


def _awaiting(effort: Effort, variants: dict[str, Any]) -> Timings:
    found = [_awaited(name, make()) for name, make in variants.items()]
    return timed_async([*found, Contender(BARE, "", nothing_async)], effort)


def _awaited(name: str, made: Upstream) -> Contender:
    return Contender("Upstream.guard", name, made.guard(nothing_async), aclose=made.aclose)


def _record(section: Section, title: str, timings: Timings) -> None:
    section.tables.append(Table.of_costs(title, timings, "Upstream.guard memory://"))
