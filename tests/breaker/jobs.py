"""What worker processes do in the tests of breakers.

The backend is a file: each call that reaches it adds a byte.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.processes.jobs import ready, say

from comporta import CircuitBreaker, CircuitOpenError

NAME = "upstream"
_TRIES_MAX = 10_000
_PAUSE_SECONDS = 0.01


class Backend:
    """An upstream that counts who reaches it."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def hit(self) -> None:
        """Be reached."""
        os.write(self._fd, b"x")

    def fail(self) -> None:
        """Be reached, and fail."""
        self.hit()
        raise OSError("down")


def hits(path: str) -> int:
    """Return how often a backend was reached."""
    return Path(path).stat().st_size if Path(path).exists() else 0


def breaker_of(url: str, config: dict[str, Any]) -> CircuitBreaker:
    return CircuitBreaker(NAME, state=url, **config)


def trip_blocking(number: int, url: str, backend: str, config: dict[str, Any]) -> None:
    """Call a backend that fails, until refused."""
    call = breaker_of(url, config)(Backend(backend).fail)
    ready()
    say(_until_refused(call))


def _until_refused(call: Callable[[], None]) -> int:
    for tried in range(_TRIES_MAX):
        try:
            call()
        except CircuitOpenError:
            return tried
        except OSError:
            continue
    return _TRIES_MAX


def trip_awaiting(number: int, url: str, backend: str, config: dict[str, Any]) -> None:
    """Do the same on an event loop."""

    async def main() -> int:
        breaker, upstream = breaker_of(url, config), Backend(backend)
        ready()
        for tried in range(_TRIES_MAX):
            try:
                async with breaker:
                    upstream.fail()
            except CircuitOpenError:
                return tried
            except OSError:
                continue
        return _TRIES_MAX

    say(asyncio.run(main()))


def crowd(number: int, url: str, backend: str, config: dict[str, Any], callers: int) -> None:
    """Call from many coroutines at once; those let through stay inside until told to go."""

    async def main() -> None:
        breaker, upstream, leave = breaker_of(url, config), Backend(backend), asyncio.Event()
        answers: list[bool] = []

        async def call() -> None:
            try:
                async with breaker:
                    upstream.hit()
                    answers.append(True)
                    await leave.wait()
            except CircuitOpenError:
                answers.append(False)

        ready()
        tasks = [asyncio.create_task(call()) for _ in range(callers)]
        while len(answers) < callers:  # noqa: ASYNC110 - everybody has answered, or is inside
            await asyncio.sleep(_PAUSE_SECONDS)
        say(sum(answers))
        sys.stdin.readline()
        leave.set()
        await asyncio.gather(*tasks)
        say(breaker.phase)

    asyncio.run(main())


def hang_in_probe(number: int, url: str, config: dict[str, Any]) -> None:
    """Take the probe, say when, and never come back."""
    breaker = breaker_of(url, config)
    while True:
        asked_ns = time.monotonic_ns()
        if breaker.sync.allow():
            break
        time.sleep(_PAUSE_SECONDS)
    say("ready")
    say(asked_ns)
    time.sleep(3600)


def call_until_well(number: int, url: str, backend: str, config: dict[str, Any]) -> None:
    """Call steadily until let through; tell when that was."""
    call = breaker_of(url, config)(Backend(backend).hit)
    ready()
    while True:
        try:
            call()
            break
        except CircuitOpenError:
            time.sleep(_PAUSE_SECONDS)
    say(time.monotonic_ns())


def call_steadily(
    number: int, url: str, backend: str, config: dict[str, Any], *, seconds: float, awaiting: bool
) -> None:
    """Learn that the circuit is open; then call steadily and tell how long the slowest call took."""
    breaker, upstream = breaker_of(url, config), Backend(backend)
    while not breaker.is_degraded:
        time.sleep(_PAUSE_SECONDS)
    if awaiting:
        say(asyncio.run(_steadily(breaker, upstream, seconds)))
        return
    call = breaker(upstream.hit)
    begins_ns = ready()
    slowest_ns = refused = 0
    while (before_ns := time.monotonic_ns()) - begins_ns < seconds * 1e9:
        try:
            call()
        except CircuitOpenError:
            refused += 1
        slowest_ns = max(slowest_ns, time.monotonic_ns() - before_ns)
        time.sleep(_PAUSE_SECONDS)
    say({"slowest": slowest_ns / 1e9, "refused": refused, "alone": breaker.fallback is not None})


async def _steadily(breaker: CircuitBreaker, upstream: Backend, seconds: float) -> dict[str, Any]:
    begins_ns = ready()
    slowest_ns = refused = 0
    while (before_ns := time.monotonic_ns()) - begins_ns < seconds * 1e9:
        try:
            async with breaker:
                upstream.hit()
        except CircuitOpenError:
            refused += 1
        slowest_ns = max(slowest_ns, time.monotonic_ns() - before_ns)
        await asyncio.sleep(_PAUSE_SECONDS)
    return {"slowest": slowest_ns / 1e9, "refused": refused, "alone": breaker.fallback is not None}


def fork_and_trip(number: int, url: str, config: dict[str, Any]) -> None:
    """Use a breaker, fork, and let the child open it; tell what the parent sees, and who failed."""
    breaker = breaker_of(url, config)
    assert breaker.sync.allow()
    warnings.simplefilter("ignore", DeprecationWarning)  # to fork with threads is what is tested
    ready()
    pid = os.fork()
    if not pid:
        admission = breaker.sync.allow()
        breaker.sync.record_failure("in the child", admission)
        os._exit(0 if breaker.is_degraded else 1)
    _, status = os.waitpid(pid, 0)
    while not breaker.is_degraded:
        time.sleep(_PAUSE_SECONDS)
    say({"status": status, "why": breaker.sync.get_state().why})


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job
    for job in (
        trip_blocking,
        trip_awaiting,
        crowd,
        hang_in_probe,
        call_until_well,
        call_steadily,
        fork_and_trip,
    )
}
