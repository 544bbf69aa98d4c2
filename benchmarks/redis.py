"""State in Redis: what the library adds to a round trip, and what it saves with concurrent callers."""

from __future__ import annotations

from contextlib import ExitStack, closing
from itertools import repeat

from benchmarks import ours, peers, server
from benchmarks.measure import Contender, Effort, Loop, Timings, calls, check, in_turns
from benchmarks.report import Goal, Section, Table

_OURS = f"{ours.COMPORTA} redis://"
_MINIMAL = "EVALSHA, minimal token bucket"
_LIMITS = {"refused": 10, "admitted": 1_000_000}
_SLOT_SECONDS = 0.03
_PINNED = "Client and server are pinned to one core."


def blocking(effort: Effort) -> Section:
    """Compare with redis-py itself, on one hot key, refused and admitted."""
    section = Section(
        "Redis, blocking",
        "One process, one connection, one hot key, one round trip for each decision. The bare EVALSHA runs "
        f"the smallest script that decides a token bucket (`benchmarks/token_bucket.lua`). {_PINNED}",
    )
    with server.pinned() as url:
        for what, per_second in _LIMITS.items():
            timings = _blocking(effort, what, url, per_second)
            section.tables.append(Table.of_speeds(f"One hot key, {what}", timings, _OURS))
            promise = f"Redis, blocking, {what}: a bare redis-py EVALSHA"
            section.goals.append(Goal.at_least(1, promise, timings, _OURS, [f"{peers.BARE} {_MINIMAL}"]))
    return section


def awaiting(effort: Effort) -> Section:
    """Compare with 1, 32 and 256 concurrent coroutines."""
    section = Section(
        "Redis, awaiting",
        "One process, one event loop, one hot key that is admitted; each coroutine calls again as soon as it "
        f"has its result. {_PINNED}",
    )
    with server.pinned() as url:
        for coroutines in (32,) if effort.quick else (1, 32, 256):
            timings = _awaiting(effort, url, coroutines)
            section.tables.append(Table.of_speeds(f"Coroutines: {coroutines}", timings, _OURS))
            if coroutines == 32:
                rivals = [n for n in timings.rates if n.startswith((peers.LIMITS, peers.THROTTLED))]
                promise = "Redis, awaiting, 32 coroutines: the best async peer (aim for 7)"
                section.goals.append(Goal.at_least(4, promise, timings, _OURS, rivals))
    return section


def _blocking(effort: Effort, key: str, url: str, per_second: int) -> Timings:
    contenders = [
        ours.on_redis(url, per_second),
        *peers.bare(url, per_second),
        *peers.on_redis(url, per_second),
    ]
    for contender in contenders:
        _check_unless_trivial(contender, key)
    return in_turns({c.name: calls(c, repeat(key)) for c in contenders}, effort, _SLOT_SECONDS)


def _check_unless_trivial(contender: Contender, key: str) -> None:
    if "return 1" not in contender.variant:
        check(contender, repeat(key), admits=key == "admitted")


def _awaiting(effort: Effort, url: str, coroutines: int) -> Timings:
    contenders = [
        ours.on_redis_async(url, _LIMITS["admitted"]),
        *peers.bare_async(url, _LIMITS["admitted"]),
        *peers.on_redis_async(url, _LIMITS["admitted"]),
    ]
    with ExitStack() as stack:
        loops = {c.name: stack.enter_context(closing(Loop(c))) for c in contenders}
        for loop in loops.values():
            loop.check(repeat("admitted"), admits=True)
        runs = {name: loop.awaits(repeat("admitted"), coroutines) for name, loop in loops.items()}
        return in_turns(runs, effort, 2 * _SLOT_SECONDS)
