"""Scenarios of the demo as data: what each step does, what it waits for, and what the narrator says.

A step succeeds when its ``condition`` holds for the current snapshot and the snapshot from the start of the
step. ``{names}`` in a ``result`` are the keys of :func:`comporta.demo.snapshot.template_values`. This module
starts no process and performs no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from comporta.demo.config import PEOPLE
from comporta.demo.snapshot import DemoSnapshot

Condition = Callable[[DemoSnapshot, DemoSnapshot], bool]


@dataclass(frozen=True)
class Action:
    """One intervention: ``kind`` is ``portal``, ``kill-worker``, ``state`` or ``crowd``."""

    kind: str
    name: str = ""
    switches: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScenarioStep:
    """One step of a scenario.

    The narrator prints ``title``, ``text`` and ``look_at`` before the actions, and ``result`` once
    ``condition`` holds. ``expectation`` states the condition in words, for the message of a step that fails.
    """

    title: str
    text: str
    look_at: str
    expectation: str
    condition: Condition
    result: str
    actions: tuple[Action, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """Steps in order. ``needs_server``: the state is kept on a real Redis or Valkey server."""

    name: str
    about: str
    steps: tuple[ScenarioStep, ...]
    needs_server: bool = False


def _portal(name: str, mode: str, **switches: Any) -> Action:
    return Action("portal", name, {"mode": mode, **switches})


def _is_healthy(now: DemoSnapshot, _: DemoSnapshot) -> bool:
    closed = all(now.phase(name) == "closed" for name in ("pncp", "pcp"))
    return closed and now.count("fresh") >= 20 and now.request_rate("pncp") > 0 and not now.fallback_count


HEALTHY: Final = ScenarioStep(
    "Everything works",
    "Users search, and the workers query PNCP and PCP for them. All workers share one limit for each portal: "
    "10 requests per second for PNCP and 5 for PCP, however many workers and users there are.",
    "The cards of PNCP and PCP: both breakers are closed, and the requests stay below the limit line.",
    "both breakers are closed and users get answers",
    _is_healthy,
    "{workers} workers have answered {fresh_total} searches with fresh results. PNCP receives {pncp_rate} "
    "of the {pncp_original} requests per second that its limit allows.",
)

WORKER_KILLED: Final = ScenarioStep(
    "A worker is killed",
    "The demo sends kill -9 to a worker that is busy. The permits it holds in the shared state expire, and "
    "the other workers take over its batch jobs.",
    "The list of workers: one disappears, and a new one takes its place.",
    "a new worker replaces the killed one",
    lambda now, before: now.replaced_count > before.replaced_count and now.workers >= before.workers,
    "A new worker was ready after {seconds} s. Meanwhile the service answered {served} searches, and {lost} "
    "failed.",
    (Action("kill-worker"),),
)

_CACHE_SERVES: Final = ScenarioStep(
    "The cache keeps searches working",
    "No worker calls PNCP now. The service answers repeated searches from the cache and marks them as stale. "
    "For new searches it returns the results of PCP and says that those of PNCP are missing.",
    "The cache: stale answers increase. Requests to PNCP: none.",
    "the service answers at least 5 searches with stale results",
    lambda now, before: now.count("stale") >= before.count("stale") + 5,
    "{stale} stale and {partial} partial answers in {seconds} s, {failed} failures. PNCP receives "
    "{pncp_rate} requests per second.",
)


def _lets_calls_through(now: DemoSnapshot, before: DemoSnapshot) -> bool:
    """Ignore probes that were in flight when the portal recovered: they still get the old answer."""
    tried = () if before.phase("pncp") == "half_open" else ("half_open",)
    return now.phase("pncp") in (*tried, "ramp", "closed")


_PNCP_RECOVERS: Final = ScenarioStep(
    "PNCP works again",
    "Nothing informs the workers. When the cooldown ends, the breaker becomes half-open: three calls of the "
    "whole fleet may probe PNCP.",
    "The card of PNCP: half-open. The list of workers: which of them hold the probes.",
    "the breaker of PNCP lets calls through",
    _lets_calls_through,
    "After {seconds} s the breaker is {pncp_phase}.",
    (_portal("pncp", "ok"),),
)

_CIRCUIT_CLOSES: Final = ScenarioStep(
    "The breaker closes",
    "The probes succeeded. The breaker lets half of the calls through first, so that the full load does not "
    "hit PNCP the moment it recovers.",
    "The card of PNCP: closed. The chart: requests return and stay below the limit.",
    "the breaker of PNCP is closed",
    lambda now, _: now.phase("pncp") == "closed",
    "Everything works as before. In its busiest 10 s PNCP received {pncp_busiest} requests.",
)

_OUTAGE: Final = (
    HEALTHY,
    ScenarioStep(
        "PNCP goes down",
        "PNCP closes every connection without an answer. Ten failures in a row, counted over all workers, "
        "open the breaker for all of them at once.",
        "The card of PNCP: open, with the reason and the end of the cooldown.",
        "the breaker of PNCP opens",
        lambda now, _: now.phase("pncp") == "open",
        "After {seconds} s the breaker is open for the whole fleet, for another {pncp_left} s.",
        (_portal("pncp", "dead"),),
    ),
    _CACHE_SERVES,
    ScenarioStep(
        "A probe fails",
        "When the cooldown ends, the breaker becomes half-open. One or two calls of the whole fleet probe "
        "PNCP, while all others still skip it. PNCP is still down, and those calls are all it costs.",
        "The card of PNCP: half-open for a moment, then open again with a new cooldown.",
        "a probe fails and the breaker opens again",
        lambda now, before: now.open_until("pncp") > before.open_until("pncp") + 0.5,
        "The probe failed. The breaker is open again, for another {pncp_left} s.",
    ),
    _PNCP_RECOVERS,
    _CIRCUIT_CLOSES,
)

_THROTTLED: Final = (
    HEALTHY,
    ScenarioStep(
        "PNCP rejects requests with 429",
        "PNCP answers every request with 429 and Retry-After: 2. That is not a failure, so the breaker stays "
        "closed. The first worker that receives a 429 pauses the whole fleet and lowers the shared limit.",
        "The card of PNCP: paused, and a limit below the original.",
        "the limit of PNCP is lowered",
        lambda now, _: now.is_limit_lowered("pncp"),
        "After {seconds} s the limit is {pncp_limit} of {pncp_original} requests per second, for all "
        "workers.",
        (_portal("pncp", "rate-limited"),),
    ),
    ScenarioStep(
        "The limit goes down step by step",
        "Each round of 429s lowers the limit by a fifth. Between two pauses only a few calls check whether "
        "PNCP accepts requests again. Users get cached results.",
        "The chart: the limit line goes down in steps. The card counts 429s separately from failures.",
        "the limit of PNCP is at most 70 % of the original one, and the service answers from the cache",
        lambda now, before: (
            0 < now.limit("pncp") <= 0.7 * now.original_limit("pncp")
            and now.counts_since(before)["stale"] >= 5
        ),
        "The limit is {pncp_limit} per second. Meanwhile: {stale} stale and {partial} partial answers, "
        "{failed} failures.",
    ),
    ScenarioStep(
        "PNCP accepts requests again",
        "Successful calls, of any worker, raise the limit again: to its last level first, then beyond it.",
        "The card of PNCP: the pause is over, and the limit rises.",
        "the limit of PNCP rises",
        lambda now, before: now.limit("pncp") > before.limit("pncp") and not now.pause_seconds("pncp"),
        "The limit is rising: {pncp_limit} per second.",
        (_portal("pncp", "ok"),),
    ),
    ScenarioStep(
        "The limit is restored",
        "The limit rises until it reaches its original value.",
        "The chart: the limit line is back at 10.",
        "the limit of PNCP is the original one",
        lambda now, _: not now.is_limit_lowered("pncp") and now.limit("pncp") > 0,
        "The limit is {pncp_limit} per second again.",
    ),
)

_SLOW: Final = (
    HEALTHY,
    ScenarioStep(
        "PNCP is slow",
        "PNCP takes 3 s for each answer, and the workers wait at most 2 s. The service answers popular "
        "searches from the cache without a delay; only new searches wait.",
        "The card of PNCP: calls in flight and waiting times rise, then failures: the calls time out.",
        "time-outs open the breaker of PNCP",
        lambda now, _: now.phase("pncp") == "open",
        "After {seconds} s, ten calls in a row had timed out: the breaker is open for the whole fleet, for "
        "another {pncp_left} s.",
        (_portal("pncp", "slow", delay=3.0),),
    ),
    _CACHE_SERVES,
    _PNCP_RECOVERS,
    _CIRCUIT_CLOSES,
)

_REDIS_DIES: Final = (
    HEALTHY,
    ScenarioStep(
        "The state server is killed",
        "The demo sends kill -9 to the server that holds the shared state. The workers cannot coordinate any "
        "more, so each continues with its local share of every limit: with three workers, a third each. "
        "Together they still stay within the limit.",
        "The top of the page: the shared state is unreachable, since when and why.",
        "the workers detect the outage and continue with local shares",
        lambda now, _: now.fallback_count > 0,
        "The first worker detected the outage within {seconds} s.",
        (Action("state", "kill"),),
    ),
    ScenarioStep(
        "Searches continue within the limit",
        "No request waits for the dead server. PNCP and PCP count the requests that they receive.",
        "The requests: below the limit, although the workers cannot count them together.",
        "the service answers at least 30 searches without the shared state",
        lambda now, before: (
            sum(now.counts_since(before)[kind] for kind in ("fresh", "stale", "partial")) >= 30
        ),
        "{served} answers in {seconds} s, {failed} failures. PNCP receives {pncp_rate} of {pncp_original} "
        "requests per second, PCP {pcp_rate} of {pcp_original}.",
    ),
    ScenarioStep(
        "The state server returns empty",
        "The workers find the server again. They rejoin at the same moment and report what they granted "
        "during the outage, so that no limit starts over with a full bucket.",
        "The top of the page: healthy again. The list of workers: complete.",
        "all workers share the state again",
        lambda now, before: not now.fallback_count and now.workers >= max(1, before.workers),
        "{workers} workers share the state again after {seconds} s.",
        (Action("state", "start"),),
    ),
    ScenarioStep(
        "One shared limit again",
        "All workers use the shared limit again.",
        "The cards: the requests stay below the limit line all the time.",
        "the service answers at least 10 searches with fresh results, using the shared state",
        lambda now, before: now.count("fresh") >= before.count("fresh") + 10 and not now.fallback_count,
        "In their busiest 10 s PNCP received {pncp_busiest} requests and PCP {pcp_busiest}.",
    ),
)

_CROWD: Final = (
    HEALTHY,
    ScenarioStep(
        "Twelve people search at once",
        "PNCP takes half a second for each answer. Twelve people search all 27 states, each on another day: "
        "324 calls, for which the limit of 10 per second needs half a minute. A search waits for 8 s. Then "
        "it answers with what there is, and says when the rest is expected.",
        "The card of PNCP: requests at the limit line, and long waits. No failures: to wait is no error.",
        "everyone has a first answer",
        lambda now, before: now.count("answered") >= before.count("answered") + PEOPLE,
        "After {seconds} s everyone has an answer, {parts} of them a part. The rest is read in the "
        "background.",
        (_portal("pncp", "slow", delay=0.5), Action("crowd", "all")),
    ),
    ScenarioStep(
        "One more person needs a single state",
        "The calls of different people take turns, so a search with one call waits for one turn of each "
        "person and not for the 324 calls. People come first (class interactive), then refreshes of cached "
        "answers (class normal), then batch jobs (class batch).",
        "The card of PNCP, below In flight: how many callers of each class wait. The cache: stale answers "
        "increase, because refreshes come after the people who wait.",
        "the search for one state is answered",
        lambda now, before: now.count("single") > before.count("single"),
        "It took {single_seconds} s, while {waiting} people wait for the rest of their answers.",
        (Action("crowd", "one"),),
    ),
    ScenarioStep(
        "Everyone gets the whole answer",
        "The whole fleet reads each page once, however many people need it. People ask again at the time "
        "that their answer named.",
        "The card of PNCP: the waits become short again, and the requests fall below the limit line.",
        "no one waits any more",
        lambda now, _: now.count("whole") >= PEOPLE and not now.count("waiting"),
        "All answers are complete. In its busiest 10 s PNCP received {pncp_busiest} requests.",
        (_portal("pncp", "ok"),),
    ),
)

SCENARIOS: Final[Mapping[str, Scenario]] = MappingProxyType(
    {
        scenario.name: scenario
        for scenario in (
            Scenario("outage", "a portal goes down and recovers", _OUTAGE),
            Scenario("throttled", "a portal rejects requests with 429", _THROTTLED),
            Scenario("slow", "a portal answers too slowly", _SLOW),
            Scenario("redis-dies", "the state server dies and returns empty", _REDIS_DIES, needs_server=True),
            Scenario("crowd", "twelve people search at once on a slow portal", _CROWD),
        )
    }
)
"""Every scenario by its name."""

TOUR: Final = Scenario(
    "outage", "a portal goes down and recovers, and a worker is killed", (*_OUTAGE, WORKER_KILLED)
)
"""The scenario for users who choose none."""
