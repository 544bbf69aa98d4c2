"""The stories, as data: what is done, what is waited for, what is said of it, and where to look.

A step is true or it is not: ``until`` asks the picture of the moment, and the one from when the step began.
The sentences are told before and after; ``{names}`` in them are :func:`comporta.demo.picture.figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from comporta.demo.picture import Picture

Condition = Callable[[Picture, Picture], bool]


@dataclass(frozen=True)
class Act:
    """Something that is done to the world: ``portal``, ``kill-worker``, or ``state``."""

    kind: str
    name: str = ""
    switches: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """One step: ``wanted`` says in words what ``until`` asks."""

    title: str
    text: str
    look: str
    wanted: str
    until: Condition
    then: str
    acts: tuple[Act, ...] = ()


@dataclass(frozen=True)
class Story:
    """Steps in order. ``server``: the state is on a real server."""

    name: str
    about: str
    steps: tuple[Step, ...]
    server: bool = False


def _portal(name: str, mode: str, **switches: Any) -> Act:
    return Act("portal", name, {"mode": mode, **switches})


def _well(now: Picture, _: Picture) -> bool:
    closed = all(now.phase(name) == "closed" for name in ("pncp", "pcp"))
    return closed and now.count("fresh") >= 20 and now.rate("pncp") > 0 and not now.alone


WELL: Final = Step(
    "All is well",
    "Users search; the workers ask PNCP and PCP for them. Together they keep to one limit: 10 requests a "
    "second to PNCP and 5 to PCP, however many workers and users there are.",
    "The two cards: both circuits are closed, and the requests stay below the line of the limit.",
    "both circuits are closed and users are answered",
    _well,
    "{workers} workers have answered {fresh_in_all} searches afresh; PNCP sees {pncp_rate} requests a "
    "second of 10.",
)

KILLED: Final = Step(
    "A worker is killed",
    "kill -9, in the midst of its work. What it held in the shared state ends by itself; its batches are "
    "taken over by the others.",
    "The list of workers: one is no longer heard of, and another takes its place.",
    "another worker takes its place",
    lambda now, before: now.replaced > before.replaced and now.workers >= before.workers,
    "A new worker is in its place after {seconds} s; meanwhile {served} searches were answered, {lost} "
    "were cut off.",
    (Act("kill-worker"),),
)

_GO_ON: Final = Step(
    "Searches go on",
    "Nobody calls PNCP now. What was found before is served at once, and marked stale; new questions get "
    "what PCP has, and say what is missing.",
    "The cache: stale answers rise. The requests to PNCP: none.",
    "users are served from before",
    lambda now, before: now.count("stale") >= before.count("stale") + 5,
    "{stale} stale and {partial} partial answers within {seconds} s, {failed} failures; PNCP sees "
    "{pncp_rate} requests a second.",
)


def _let_through(now: Picture, before: Picture) -> bool:
    """Probes that were under way when the portal was mended do not count: they are answered as before."""
    tried = () if before.phase("pncp") == "half_open" else ("half_open",)
    return now.phase("pncp") in (*tried, "ramp", "closed")


_BACK: Final = Step(
    "PNCP is mended",
    "Nobody tells the workers. When the time of the circuit is up, it is half-open: three calls of the whole "
    "fleet may try, and find out.",
    "The card of PNCP: half-open, and in the list of workers who has the probes.",
    "the circuit of PNCP lets calls through",
    _let_through,
    "After {seconds} s it is {pncp_phase}.",
    (_portal("pncp", "ok"),),
)

_CLOSED: Final = Step(
    "Closed again",
    "The probes were answered, so calls are let through again, a half of them first: PNCP is not run down "
    "the moment it stands up.",
    "The card of PNCP: closed. The chart: requests come back, below the limit.",
    "the circuit of PNCP is closed",
    lambda now, _: now.phase("pncp") == "closed",
    "All is as it was. In its busiest ten seconds PNCP saw {pncp_busiest} requests.",
)

_OUTAGE: Final = (
    WELL,
    Step(
        "PNCP dies",
        "It hangs up on every request. Ten failures in a row, whichever workers have them, open the "
        "circuit for all of them at once.",
        "The card of PNCP: it turns open, and says why and until when.",
        "the circuit of PNCP opens",
        lambda now, _: now.phase("pncp") == "open",
        "After {seconds} s the circuit is open for the whole fleet, until {pncp_until}.",
        (_portal("pncp", "dead"),),
    ),
    _GO_ON,
    Step(
        "A probe",
        "When the time is up, the circuit is half-open: a call or two of the whole fleet try, while all "
        "others go on without. PNCP is still dead, and that is all it costs.",
        "The card of PNCP: half-open for a moment, then open again, with a new time.",
        "a probe is made, fails, and the circuit is open again",
        lambda now, before: now.until("pncp") > before.until("pncp") + 0.5,
        "The probe failed: open again, until {pncp_until}.",
    ),
    _BACK,
    _CLOSED,
)

_THROTTLED: Final = (
    WELL,
    Step(
        "PNCP says: too many",
        "Every request is answered with 429 and Retry-After: 2. That is no failure, so the circuit stays "
        "closed: whoever hears it makes the whole fleet pause, and lowers the limit for all.",
        "The card of PNCP: paused, and the limit in force below the original.",
        "the limit of PNCP is lowered",
        lambda now, _: now.lowered("pncp"),
        "After {seconds} s the limit is {pncp_limit} of 10 a second, for all workers.",
        (_portal("pncp", "rate-limited"),),
    ),
    Step(
        "Step by step",
        "Each refusal lowers the limit by a tenth. Between two pauses only a few calls go out to see whether "
        "PNCP takes them again; users have what was found before.",
        "The chart: the line of the limit goes down like stairs; refusals are counted apart from failures.",
        "the limit of PNCP is at 7 a second or less, and users are served from before",
        lambda now, before: 0 < now.limit("pncp") <= 7 and now.since(before)["stale"] >= 5,
        "It is at {pncp_limit} a second; {stale} stale and {partial} partial answers meanwhile, {failed} "
        "failures.",
    ),
    Step(
        "PNCP takes requests again",
        "Every call that succeeds may raise the limit by a step, one each two seconds, whoever made it.",
        "The card of PNCP: no pause any more, and the limit climbs.",
        "the limit of PNCP climbs",
        lambda now, before: now.limit("pncp") > before.limit("pncp") and not now.paused("pncp"),
        "It has begun to climb: {pncp_limit} a second.",
        (_portal("pncp", "ok"),),
    ),
    Step(
        "As before",
        "It climbs on until it is what it was.",
        "The chart: the line of the limit is back at 10.",
        "the limit of PNCP is the original one",
        lambda now, _: not now.lowered("pncp") and now.limit("pncp") > 0,
        "The limit is {pncp_limit} a second again.",
    ),
)

_SLOW: Final = (
    WELL,
    Step(
        "PNCP is slow",
        "Its answers take three seconds; the workers wait two at the most. What is popular is served at once "
        "from before, and only new questions wait.",
        "The card of PNCP: calls in flight and waits rise, then failures: time-outs.",
        "time-outs open the circuit of PNCP",
        lambda now, _: now.phase("pncp") == "open",
        "After {seconds} s there were ten time-outs in a row: open for the whole fleet, until {pncp_until}.",
        (_portal("pncp", "slow", delay=3.0),),
    ),
    _GO_ON,
    _BACK,
    _CLOSED,
)

_REDIS: Final = (
    WELL,
    Step(
        "The server of the state is killed",
        "kill -9. The workers can no longer ask each other. Each goes on by itself, with its share of every "
        "limit: with three workers a third each, so that together they still keep to it.",
        "The top of the page: the shared state is out of reach, since when and why.",
        "workers notice, and go on alone",
        lambda now, _: now.alone > 0,
        "Noticed within {seconds} s.",
        (Act("state", "kill"),),
    ),
    Step(
        "Searches go on, the limit holds",
        "No request waits for the dead server. What PNCP and PCP see is counted by themselves.",
        "The requests: below the limit, though nobody can count them together.",
        "users are answered without the shared state",
        lambda now, before: sum(now.since(before)[what] for what in ("fresh", "stale", "partial")) >= 30,
        "{served} answers within {seconds} s, {failed} failures; PNCP sees {pncp_rate} requests a second "
        "of 10, PCP {pcp_rate} of 5.",
    ),
    Step(
        "The server is back, empty",
        "The workers look for it. They return together, and report what they granted meanwhile, so that no "
        "limit starts anew with a full bucket.",
        "The top of the page: all is well again; every worker is in the list.",
        "all workers are together again",
        lambda now, before: not now.alone and now.workers >= max(1, before.workers),
        "{workers} workers share the state again after {seconds} s.",
        (Act("state", "start"),),
    ),
    Step(
        "As before",
        "One limit for all again.",
        "The cards: requests below the line of the limit, all the time.",
        "both circuits are closed and users are answered",
        lambda now, before: now.count("fresh") >= before.count("fresh") + 10 and not now.alone,
        "In their busiest ten seconds PNCP saw {pncp_busiest} requests and PCP {pcp_busiest}.",
    ),
)

STORIES: Final[Mapping[str, Story]] = MappingProxyType(
    {
        story.name: story
        for story in (
            Story("outage", "a portal dies and comes back", _OUTAGE),
            Story("throttled", "a portal wants fewer requests", _THROTTLED),
            Story("slow", "a portal answers, but too late", _SLOW),
            Story("redis-dies", "the server of the shared state is killed", _REDIS, server=True),
        )
    }
)
"""Every story by its name."""

TOUR: Final = Story("outage", "a portal dies and comes back, and a worker is killed", (*_OUTAGE, KILLED))
"""What is told to those who ask for no story."""
