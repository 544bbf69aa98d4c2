"""The jobs of workers in the outage tests: call at an even rate above the limit, through every fault.

Each worker logs every call with its two moments and its result, every exception, when it fell back and when
it rejoined, and when the machine did not run it. Other jobs only start, register and exit.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.processes.jobs import make_limiter, send_result, wait_for_start

from comporta import BaseLimiter
from comporta.events import latest_events

_POLL_SECONDS = 0.002
STALL_NS = 50_000_000
"""A thread that sleeps for 2 ms at a time and wakes up this late was not run by the machine."""


@dataclass(frozen=True)
class Pace:
    """How long and how often to call, and from how many threads or coroutines."""

    seconds: float
    per_second: float
    callers: int = 2

    def turns(self, begins_ns: int) -> list[Iterator[int]]:
        """Return the moments at which each caller calls, so that all together call at an even rate."""
        return [self._moments(begins_ns, turn) for turn in range(self.callers)]

    def _moments(self, begins_ns: int, turn: int) -> Iterator[int]:
        for count in range(turn, int(self.seconds * self.per_second), self.callers):
            yield begins_ns + int(count * 1e9 / self.per_second)


class CallLog:
    """The log of one worker."""

    def __init__(self, limiter: BaseLimiter) -> None:
        self.calls: list[tuple[int, int, bool]] = []
        self.errors: list[str] = []
        self.switches: list[tuple[int, bool]] = []
        self.stalls: list[tuple[int, int]] = []
        self._limiter = limiter
        self._over = threading.Event()

    def watch(self) -> None:
        """Start the threads that watch for stalls and fallbacks."""
        for cpu in os.sched_getaffinity(0):
            threading.Thread(target=self._watch_stalls, args=(cpu,), daemon=True).start()
        threading.Thread(target=self._watch_fallback, daemon=True).start()

    def add_error(self, error: Exception) -> bool:
        """Record an exception that a caller must never see; return that nothing was granted."""
        self.errors.append(repr(error))
        return False

    def finish(self) -> dict[str, Any]:
        """End the threads and return the whole log."""
        self._over.set()
        return {name: vars(self)[name] for name in ("calls", "errors", "switches", "stalls")}

    def _watch_stalls(self, cpu: int) -> None:
        """Record when this processor did not run this process: each processor may stall independently."""
        os.sched_setaffinity(0, {cpu})
        last_ns = time.monotonic_ns()
        while not self._over.is_set():
            time.sleep(_POLL_SECONDS)
            now_ns = time.monotonic_ns()
            if now_ns - last_ns > STALL_NS:
                self.stalls.append((last_ns, now_ns))
            last_ns = now_ns

    def _watch_fallback(self) -> None:
        in_fallback = False
        while not self._over.is_set():
            time.sleep(_POLL_SECONDS)
            if (self._limiter.fallback is not None) != in_fallback:
                in_fallback = not in_fallback
                self.switches.append((time.monotonic_ns(), in_fallback))


def steady_load(
    number: int, url: str, limit: dict[str, Any], pace: dict[str, Any], async_workers: list[int]
) -> None:
    """Call at an even rate, from threads or, if this worker is among ``async_workers``, from coroutines."""
    limiter = make_limiter(url, limit)
    log = CallLog(limiter)
    if number in async_workers:
        asyncio.run(_await_all(limiter, log, Pace(**pace)))
    else:
        _block_all(limiter, log, Pace(**pace))
    send_result(log.finish())


def _block_all(limiter: BaseLimiter, log: CallLog, pace: Pace) -> None:
    def call_at(moments: Iterator[int]) -> None:
        for due_ns in moments:
            time.sleep(_seconds_until(due_ns))
            before_ns = time.monotonic_ns()
            try:
                granted = limiter.sync.acquire("k")
            except Exception as error:
                granted = log.add_error(error)
            log.calls.append((before_ns, time.monotonic_ns(), granted))

    begins_ns = _join_and_wait(limiter)
    log.watch()
    threads = [threading.Thread(target=call_at, args=(moments,)) for moments in pace.turns(begins_ns)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def _await_all(limiter: BaseLimiter, log: CallLog, pace: Pace) -> None:
    async def call_at(moments: Iterator[int]) -> None:
        for due_ns in moments:
            await asyncio.sleep(_seconds_until(due_ns))
            before_ns = time.monotonic_ns()
            try:
                granted = await limiter.acquire("k")
            except Exception as error:
                granted = log.add_error(error)
            log.calls.append((before_ns, time.monotonic_ns(), granted))

    await limiter.acquire("other")
    begins_ns = _join_and_wait(limiter)
    log.watch()
    await asyncio.gather(*map(call_at, pace.turns(begins_ns)))
    await limiter.aclose()


def _join_and_wait(limiter: BaseLimiter) -> int:
    """Join the other workers and return the moment at which all begin.

    The worker does not spin until then: there are fewer processors than workers, and the server needs one.
    """
    limiter.sync.acquire("other")
    _wait_for_rejoin(limiter)
    send_result("ready")
    return int(sys.stdin.readline())


def _wait_for_rejoin(limiter: BaseLimiter) -> None:
    while limiter.fallback is not None:
        time.sleep(_POLL_SECONDS)


def _seconds_until(due_ns: int) -> float:
    return max(0.0, (due_ns - time.monotonic_ns()) / 1e9)


def stay_registered(number: int, url: str, limit: dict[str, Any], *, forks: bool = False) -> None:
    """Use a limit, with ``forks`` also in a forked child, and stay until the second start signal."""
    limiter = make_limiter(url, limit)
    limiter.sync.acquire("k")
    child = _fork_registered_child(limiter) if forks else None
    wait_for_start()
    send_result({"pid": os.getpid(), "child": child})
    wait_for_start()
    if child is not None:
        os.waitpid(child, 0)


def _fork_registered_child(limiter: BaseLimiter) -> int:
    """Fork a child that uses its parent's limiter, and ends soon after its parent."""
    warnings.simplefilter("ignore", DeprecationWarning)  # this test forks a process with threads on purpose
    pid = os.fork()
    if pid:
        return pid
    limiter.sync.acquire("k")
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(0)


def start_in_outage(number: int, url: str, limit: dict[str, Any], seconds: float) -> None:
    """Start without a server and report the grants; after the start signal, rejoin and report that."""
    limiter = make_limiter(url, limit)
    began_ns = time.monotonic_ns()
    granted = 0
    while (elapsed := (time.monotonic_ns() - began_ns) / 1e9) < seconds:
        granted += limiter.sync.acquire("k")
        time.sleep(_POLL_SECONDS)
    fallback = limiter.fallback
    workers = fallback and fallback.worker_count
    send_result({"granted": granted, "seconds": elapsed, "began_ns": began_ns, "workers": workers})
    wait_for_start()
    _wait_for_rejoin(limiter)
    send_result(limiter.sync.acquire("other"))
    wait_for_start()


def start_cold(number: int, url: str, limit: dict[str, Any], threads: int) -> None:
    """Let many threads make the first call of a new process at once; report grants and fallbacks."""
    limiter = make_limiter(url, limit).sync
    start = threading.Barrier(threads)

    def call() -> bool:
        start.wait()
        return bool(limiter.acquire("k"))

    with ThreadPoolExecutor(threads) as pool:
        grants = list(pool.map(lambda _: call(), range(threads)))
    reasons = [event.text for event in latest_events() if event.kind == "state_fallback"]
    send_result({"granted": sum(grants), "fallbacks": reasons})


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job for job in (steady_load, stay_registered, start_in_outage, start_cold)
}
