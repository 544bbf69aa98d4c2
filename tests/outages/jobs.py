"""What worker processes do in these tests: ask evenly for more than there is, whatever becomes of the server.

Each keeps a log of its own: every call with its two moments and its answer, what was raised, when it went on
alone and came back, and when the machine gave the process no time at all.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.processes.jobs import limiter_of, say

from comporta import BaseLimiter

_LOOK_SECONDS = 0.002
STALL_NS = 50_000_000
"""A thread that only sleeps for two milliseconds at a time and was away for so long was kept from running."""


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

    def told(self) -> dict[str, Any]:
        """End the watch and return all there is."""
        self._over.set()
        return {name: vars(self)[name] for name in ("calls", "errors", "switches", "stalls")}


def steady_load(
    number: int,
    url: str,
    limit: dict[str, Any],
    seconds: float,
    per_second: float,
    askers: int = 2,
    awaiting: tuple[int, ...] = (),
) -> None:
    """Ask evenly, from some threads or, if this worker is among the ``awaiting``, some coroutines."""
    limiter = limiter_of(url, limit)
    log = Log(limiter)
    if number in awaiting:
        asyncio.run(_await_all(limiter, log, seconds, per_second, askers))
    else:
        while not limiter.sync.acquire("other") or limiter.fallback:
            time.sleep(_LOOK_SECONDS)
        _block_all(limiter, log, _told_when(), seconds, per_second, askers)
    say(log.told())


def _block_all(
    limiter: BaseLimiter, log: Log, begins_ns: int, seconds: float, per_second: float, askers: int
) -> None:
    def ask(moments: Iterator[int]) -> None:
        for due_ns in moments:
            time.sleep(_seconds_until(due_ns))
            before_ns = time.monotonic_ns()
            try:
                granted = limiter.sync.acquire("k")
            except Exception as error:
                granted = False
                log.errors.append(repr(error))
            log.calls.append((before_ns, time.monotonic_ns(), granted))

    log.watch()
    turns = (_moments(begins_ns, seconds, per_second, turn, askers) for turn in range(askers))
    threads = [threading.Thread(target=ask, args=(moments,)) for moments in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _await_all(limiter: BaseLimiter, log: Log, seconds: float, per_second: float, askers: int) -> None:
    async def ask(moments: Iterator[int]) -> None:
        for due_ns in moments:
            await asyncio.sleep(_seconds_until(due_ns))
            before_ns = time.monotonic_ns()
            try:
                granted = await limiter.acquire("k")
            except Exception as error:
                granted = False
                log.errors.append(repr(error))
            log.calls.append((before_ns, time.monotonic_ns(), granted))

    while not await limiter.acquire("other") or limiter.fallback:
        await asyncio.sleep(_LOOK_SECONDS)
    begins_ns = _told_when()
    log.watch()
    turns = (_moments(begins_ns, seconds, per_second, turn, askers) for turn in range(askers))
    await asyncio.gather(*map(ask, turns))
    await limiter.aclose()


def _told_when() -> int:
    """Return the moment at which all begin; nobody spins until then, there are more workers than cores."""
    say("ready")
    return int(sys.stdin.readline())


def _moments(begins_ns: int, seconds: float, per_second: float, turn: int, askers: int) -> Iterator[int]:
    """Return when one asker asks, so that all together ask evenly."""
    for count in range(turn, int(seconds * per_second), askers):
        yield begins_ns + int(count * 1e9 / per_second)


def _seconds_until(due_ns: int) -> float:
    return max(0.0, (due_ns - time.monotonic_ns()) / 1e9)


JOBS: dict[str, Callable[..., None]] = {job.__name__: job for job in (steady_load,)}
