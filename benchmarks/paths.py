"""The paths that programs take besides the fastest call: ``decide``, a time-out, other keys and callers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from fcntl import LOCK_EX, LOCK_UN, flock
from functools import partial
from itertools import repeat
from typing import Any

from benchmarks import ours, peers
from benchmarks.measure import Contender, Effort, Loop, Timings, calls, in_turns
from benchmarks.pair import compare_in_pair
from benchmarks.report import Goal, Section, Table
from benchmarks.state import shared_parent, shared_state
from comporta import LimitConfig, LimitKey, TokenBucketLimiter

_PLENTY = 1_000_000
_KEY = "user:1"
_SLOT_SECONDS = 0.06
_FASTEST = f"{ours.COMPORTA} acquire"
_DECIDE = f"{ours.COMPORTA} decide"
_WAITING = f"{ours.COMPORTA} acquire(timeout=1)"
_FLOCK = "a pair of flock calls"


def run(effort: Effort) -> Section:
    """Compare each path with the fastest call and with the peer that offers the same."""
    section = Section(
        "The paths that programs take",
        "One hot key that is always admitted, CPU time of the process. `acquire` is the fastest call; "
        "`decide` returns the limit, what remains and when to retry, as throttled-py's `limit` always does; "
        "`acquire(timeout=1)` would wait, as aiolimiter's `acquire` would. In the row with a waiter, another "
        "caller waits for another key of the same limit all the time. Two processes: the sum of both, beside "
        "the least that any decision under a file lock costs, which is taking and releasing the lock.",
    )
    with shared_state() as state:
        for name, url in (("memory://", "memory://"), ("shared://", state)):
            _record_blocking(section, name, _blocking(effort, url))
        _record_awaiting(section, _awaiting(effort))
        _record_pair(section, effort, state)
    return section


def _limiter(state: str, name: str) -> TokenBucketLimiter:
    return TokenBucketLimiter(LimitConfig(_PLENTY, _PLENTY), state, name)


def _blocking(effort: Effort, state: str) -> Timings:
    limiter = _limiter(state, "paths").sync
    busy = _limiter(state, "busy")
    contenders = [
        Contender(ours.COMPORTA, "acquire", limiter.acquire),
        Contender(ours.COMPORTA, "acquire, no key", lambda _: limiter.acquire()),
        Contender(
            ours.COMPORTA, "acquire, LimitKey", partial(_ignoring, limiter.acquire, LimitKey("user", "1"))
        ),
        Contender(ours.COMPORTA, "acquire(timeout=1)", partial(limiter.acquire, timeout=1)),
        Contender(ours.COMPORTA, "decide", limiter.decide),
        Contender(ours.COMPORTA, "acquire, another key has a waiter", busy.sync.acquire),
        *(c for c in peers.in_memory(_PLENTY) if c.library == peers.THROTTLED),
    ]
    with _waiter(busy):
        for contender in contenders:
            for _ in range(100):
                contender.decide(_KEY)
        runs = {contender.name: calls(contender, repeat(_KEY)) for contender in contenders}
        return in_turns(runs, effort, clock_ns=time.process_time_ns)


def _ignoring(acquire: Callable[[Any], bool], key: LimitKey, _: str) -> bool:
    return acquire(key)


@contextmanager
def _waiter(limiter: TokenBucketLimiter) -> Iterator[None]:
    """Let a caller wait for the key ``"other"`` of a limit until the end."""
    queue, key = limiter._flows.wait_queue, "other"  # noqa: SLF001 - a thread would run in our turns
    waiter = queue.join(key)
    assert waiter is not None
    try:
        yield
    finally:
        queue.leave(key, waiter)


def _awaiting(effort: Effort) -> Timings:
    limiter = _limiter("memory://", "paths-async")
    contenders = [
        Contender(ours.COMPORTA, "acquire", limiter.acquire),
        Contender(ours.COMPORTA, "acquire(timeout=1)", partial(limiter.acquire, timeout=1)),
        Contender(ours.COMPORTA, "decide", limiter.decide),
        *(c for c in peers.in_memory_async(_PLENTY) if c.library in (peers.AIOLIMITER, peers.THROTTLED)),
    ]
    with ExitStack() as stack:
        loops = [stack.enter_context(closing(Loop(contender))) for contender in contenders]
        runs = {loop.name: loop.awaits(repeat(_KEY)) for loop in loops}
        return in_turns(runs, effort, clock_ns=time.process_time_ns)


def _record_blocking(section: Section, state: str, timings: Timings) -> None:
    section.tables.append(Table.of_costs(f"Blocking, {state}", timings, _FASTEST))
    goals: dict[str, float] = {"acquire, no key": 1.3, "acquire, LimitKey": 1.3}
    goals["acquire, another key has a waiter"] = 1.3
    for path, wanted in goals.items():
        promise = f"{state}, {path}: acquire with a str key"
        section.goals.append(Goal.at_most(wanted, promise, timings, f"{ours.COMPORTA} {path}", [_FASTEST]))
    if state == "memory://":
        rivals = [name for name in timings.rates if name.startswith(peers.THROTTLED)]
        promise = f"{state}, decide: throttled-py's full result"
        section.goals.append(Goal.at_most(0.6, promise, timings, _DECIDE, rivals))
    else:
        promise = f"{state}, decide: acquire"
        section.goals.append(Goal.at_most(2, promise, timings, _DECIDE, [_FASTEST]))


def _record_awaiting(section: Section, timings: Timings) -> None:
    section.tables.append(Table.of_costs("Awaiting, memory://", timings, _FASTEST))
    rivals = [name for name in timings.rates if name.startswith(peers.AIOLIMITER)]
    promise = "memory://, awaiting, acquire(timeout=1): aiolimiter"
    section.goals.append(Goal.at_most(1.3, promise, timings, _WAITING, rivals))


def _record_pair(section: Section, effort: Effort, state: str) -> None:
    with tempfile.TemporaryDirectory(dir=shared_parent()) as folder:  # the file system of the state
        arguments = (state, f"{folder}/lock")
        timings = compare_in_pair(pair_contenders, arguments, _KEY, effort.rounds // 2, _SLOT_SECONDS)
    section.tables.append(Table.of_speeds("Two processes at once, shared://", timings, _FASTEST))
    promise = "shared://, two processes, admitted: a bare pair of flock calls"
    section.goals.append(Goal.at_least(0.3, promise, timings, _FASTEST, [_FLOCK]))


def pair_contenders(state: str, lock: str) -> list[Contender]:
    """Return what both processes run: decisions on one key, and the least that a file lock costs."""
    fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    return [
        Contender(ours.COMPORTA, "acquire", _limiter(state, "pair").sync.acquire),
        Contender(_FLOCK, "", partial(_lock_pair, fd)),
    ]


def _lock_pair(fd: int, _: str) -> bool:
    flock(fd, LOCK_EX)
    flock(fd, LOCK_UN)
    return True
