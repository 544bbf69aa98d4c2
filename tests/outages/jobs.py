"""What worker processes do in these tests: ask evenly for more than there is, whatever becomes of the server.

Each keeps a log of its own: every call with its two moments and its answer, what was raised, when it went on
alone and came back, and when the machine gave the process no time at all. Others only come, stay and go.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.processes.jobs import limiter_of, ready, say

from comporta import BaseLimiter

_LOOK_SECONDS = 0.002
STALL_NS = 50_000_000
"""A thread that only sleeps for two milliseconds at a time and was away for so long was kept from running."""


@dataclass(frozen=True)
class Pace:
    """How long and how often to ask, and from how many threads or coroutines."""

    seconds: float
    per_second: float
    askers: int = 2

    def turns(self, begins_ns: int) -> list[Iterator[int]]:
        """Return for each asker the moments at which it asks, so that all together ask evenly."""
        return [self._moments(begins_ns, turn) for turn in range(self.askers)]

    def _moments(self, begins_ns: int, turn: int) -> Iterator[int]:
        for count in range(turn, int(self.seconds * self.per_second), self.askers):
            yield begins_ns + int(count * 1e9 / self.per_second)


class Log:
    """What one worker saw."""

    def __init__(self, limiter: BaseLimiter) -> None:
        self.calls: list[tuple[int, int, bool]] = []
        self.errors: list[str] = []
        self.switches: list[tuple[int, bool]] = []
        self.stalls: list[tuple[int, int]] = []
        self._limiter = limiter
        self._over = threading.Event()

    def watch(self) -> None:
        """Watch in threads of their own until the end."""
        for cpu in os.sched_getaffinity(0):
            threading.Thread(target=self._see_stalls, args=(cpu,), daemon=True).start()
        threading.Thread(target=self._see_switches, daemon=True).start()

    def raised(self, error: Exception) -> bool:
        """Note what a caller must never see; it got nothing."""
        self.errors.append(repr(error))
        return False

    def told(self) -> dict[str, Any]:
        """End the watch and return all there is."""
        self._over.set()
        return {name: vars(self)[name] for name in ("calls", "errors", "switches", "stalls")}

    def _see_stalls(self, cpu: int) -> None:
        """Note when this processor gave this process no time: each one may stand still on its own."""
        os.sched_setaffinity(0, {cpu})
        last_ns = time.monotonic_ns()
        while not self._over.is_set():
            time.sleep(_LOOK_SECONDS)
            now_ns = time.monotonic_ns()
            if now_ns - last_ns > STALL_NS:
                self.stalls.append((last_ns, now_ns))
            last_ns = now_ns

    def _see_switches(self) -> None:
        alone = False
        while not self._over.is_set():
            time.sleep(_LOOK_SECONDS)
            if (self._limiter.fallback is not None) != alone:
                alone = not alone
                self.switches.append((time.monotonic_ns(), alone))


def steady_load(
    number: int, url: str, limit: dict[str, Any], pace: dict[str, Any], awaiting: list[int]
) -> None:
    """Ask evenly, from some threads or, if this worker is among the ``awaiting``, some coroutines."""
    limiter = limiter_of(url, limit)
    log = Log(limiter)
    if number in awaiting:
        asyncio.run(_await_all(limiter, log, Pace(**pace)))
    else:
        _block_all(limiter, log, Pace(**pace))
    say(log.told())


def _block_all(limiter: BaseLimiter, log: Log, pace: Pace) -> None:
    def ask(moments: Iterator[int]) -> None:
        for due_ns in moments:
            time.sleep(_seconds_until(due_ns))
            before_ns = time.monotonic_ns()
            try:
                granted = limiter.sync.acquire("k")
            except Exception as error:
                granted = log.raised(error)
            log.calls.append((before_ns, time.monotonic_ns(), granted))

    begins_ns = _joined_and_told_when(limiter)
    log.watch()
    threads = [threading.Thread(target=ask, args=(moments,)) for moments in pace.turns(begins_ns)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _await_all(limiter: BaseLimiter, log: Log, pace: Pace) -> None:
    async def ask(moments: Iterator[int]) -> None:
        for due_ns in moments:
            await asyncio.sleep(_seconds_until(due_ns))
            before_ns = time.monotonic_ns()
            try:
                granted = await limiter.acquire("k")
            except Exception as error:
                granted = log.raised(error)
            log.calls.append((before_ns, time.monotonic_ns(), granted))

    await limiter.acquire("other")
    begins_ns = _joined_and_told_when(limiter)
    log.watch()
    await asyncio.gather(*map(ask, pace.turns(begins_ns)))
    await limiter.aclose()


def _joined_and_told_when(limiter: BaseLimiter) -> int:
    """Join the others, and return the moment at which all begin.

    Nobody spins until then: there are more workers than processors, and a server to be served, too.
    """
    limiter.sync.acquire("other")
    _wait_until_joined(limiter)
    say("ready")
    return int(sys.stdin.readline())


def _wait_until_joined(limiter: BaseLimiter) -> None:
    while limiter.fallback is not None:
        time.sleep(_LOOK_SECONDS)


def _seconds_until(due_ns: int) -> float:
    return max(0.0, (due_ns - time.monotonic_ns()) / 1e9)


def attend(number: int, url: str, limit: dict[str, Any], *, forks: bool = False) -> None:
    """Use a limit, in a child as well if told so, and stay until told to go."""
    limiter = limiter_of(url, limit)
    limiter.sync.acquire("k")
    child = _attending_child(limiter) if forks else None
    ready()
    say({"pid": os.getpid(), "child": child})
    ready()
    if child is not None:
        os.waitpid(child, 0)


def _attending_child(limiter: BaseLimiter) -> int:
    """Fork a child that uses its parent's limiter, and ends soon after its parent."""
    warnings.simplefilter("ignore", DeprecationWarning)  # to fork with threads is what is tested
    pid = os.fork()
    if pid:
        return pid
    limiter.sync.acquire("k")
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(0)


def come_late(number: int, url: str, limit: dict[str, Any], seconds: float) -> None:
    """Start while the server is away: tell how that goes; told that it is back, tell when joined."""
    limiter = limiter_of(url, limit)
    began_ns = time.monotonic_ns()
    granted = 0
    while (gone := (time.monotonic_ns() - began_ns) / 1e9) < seconds:
        granted += limiter.sync.acquire("k")
        time.sleep(_LOOK_SECONDS)
    alone = limiter.fallback
    say({"granted": granted, "seconds": gone, "workers": alone and alone.workers})
    ready()
    _wait_until_joined(limiter)
    say(limiter.sync.acquire("other"))
    ready()


JOBS: dict[str, Callable[..., None]] = {job.__name__: job for job in (steady_load, attend, come_late)}
