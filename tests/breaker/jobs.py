"""The jobs of worker processes in the tests of breakers.

The backend is a file: each call that reaches it appends a byte.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

from tests.processes.jobs import send_result, wait_for_start
from tests.support import wait_until

from comporta import CircuitBreaker, CircuitOpenError

NAME = "upstream"
_ATTEMPTS_MAX = 10_000
_PACE_SECONDS = 0.01
"""The time between two calls of steady traffic."""


class Backend:
    """An upstream that counts the calls that reach it."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def hit(self) -> None:
        """Count a call."""
        os.write(self._fd, b"x")

    def fail(self) -> None:
        """Count a call, and fail."""
        self.hit()
        raise OSError("down")


def hits(path: str) -> int:
    """Return how many calls reached a backend."""
    return Path(path).stat().st_size if Path(path).exists() else 0


def breaker_of(url: str, config: dict[str, Any]) -> CircuitBreaker:
    return CircuitBreaker(NAME, state=url, **config)


def trip_blocking(number: int, url: str, backend: str, config: dict[str, Any]) -> None:
    """Call a failing backend until the breaker refuses."""
    call = breaker_of(url, config)(Backend(backend).fail)
    wait_for_start()
    send_result(_count_until_refused(call))


def _count_until_refused(call: Callable[[], None]) -> int:
    for attempts in range(_ATTEMPTS_MAX):
        try:
            call()
        except CircuitOpenError:
            return attempts
        except OSError:
            continue
    return _ATTEMPTS_MAX


def trip_async(number: int, url: str, backend: str, config: dict[str, Any]) -> None:
    """Do the same on an event loop."""
    send_result(asyncio.run(_fail_until_refused(breaker_of(url, config), Backend(backend))))


async def _fail_until_refused(breaker: CircuitBreaker, upstream: Backend) -> int:
    wait_for_start()
    for attempts in range(_ATTEMPTS_MAX):
        try:
            async with breaker.admit():
                upstream.fail()
        except CircuitOpenError:
            return attempts
        except OSError:
            continue
    return _ATTEMPTS_MAX


def crowd(number: int, url: str, backend: str, config: dict[str, Any], callers: int) -> None:
    """Call from many coroutines at once; admitted calls stay inside until the test sends a line."""

    async def main() -> None:
        breaker, upstream, leave = breaker_of(url, config), Backend(backend), asyncio.Event()
        answers: list[bool] = []
        all_answered = asyncio.Event()

        def answer(admitted: bool) -> None:
            answers.append(admitted)
            if len(answers) == callers:
                all_answered.set()

        async def call() -> None:
            try:
                async with breaker.admit():
                    upstream.hit()
                    answer(True)
                    await leave.wait()
            except CircuitOpenError:
                answer(False)

        wait_for_start()
        tasks = [asyncio.create_task(call()) for _ in range(callers)]
        await all_answered.wait()
        send_result(sum(answers))
        sys.stdin.readline()
        leave.set()
        await asyncio.gather(*tasks)
        send_result(breaker.phase)

    asyncio.run(main())


def hang_in_probe(number: int, url: str, config: dict[str, Any]) -> None:
    """Get the probe, send the time, and hang."""
    breaker = breaker_of(url, config)
    asked_ns = 0

    def is_admitted() -> bool:
        nonlocal asked_ns
        asked_ns = time.monotonic_ns()
        return bool(breaker.sync.allow())

    wait_until(is_admitted)
    send_result("ready")
    send_result(asked_ns)
    Event().wait()


def call_until_admitted(number: int, url: str, backend: str, config: dict[str, Any]) -> None:
    """Call steadily until a call is admitted, and send the time of that call."""
    call = breaker_of(url, config)(Backend(backend).hit)
    wait_for_start()

    def is_admitted() -> bool:
        try:
            call()
        except CircuitOpenError:
            return False
        return True

    wait_until(is_admitted)
    send_result(time.monotonic_ns())


def call_steadily(
    number: int, url: str, backend: str, config: dict[str, Any], *, seconds: float, use_async: bool
) -> None:
    """Wait until the circuit is open; then call steadily and send how long the slowest call took."""
    breaker, upstream = breaker_of(url, config), Backend(backend)
    wait_until(lambda: breaker.is_degraded)
    if use_async:
        send_result(asyncio.run(_call_steadily_async(breaker, upstream, seconds)))
        return
    call = breaker(upstream.hit)
    start_ns = wait_for_start()
    slowest_ns = refused = 0
    while (before_ns := time.monotonic_ns()) - start_ns < seconds * 1e9:
        try:
            call()
        except CircuitOpenError:
            refused += 1
        slowest_ns = max(slowest_ns, time.monotonic_ns() - before_ns)
        time.sleep(_PACE_SECONDS)
    send_result({"slowest": slowest_ns / 1e9, "refused": refused, "fallback": breaker.fallback is not None})


async def _call_steadily_async(breaker: CircuitBreaker, upstream: Backend, seconds: float) -> dict[str, Any]:
    start_ns = wait_for_start()
    slowest_ns = refused = 0
    while (before_ns := time.monotonic_ns()) - start_ns < seconds * 1e9:
        try:
            async with breaker.admit():
                upstream.hit()
        except CircuitOpenError:
            refused += 1
        slowest_ns = max(slowest_ns, time.monotonic_ns() - before_ns)
        await asyncio.sleep(_PACE_SECONDS)
    return {"slowest": slowest_ns / 1e9, "refused": refused, "fallback": breaker.fallback is not None}


def fork_and_trip(number: int, url: str, config: dict[str, Any]) -> None:
    """Use a breaker, fork, and let the child open it; send what the parent sees."""
    breaker = breaker_of(url, config)
    assert breaker.sync.allow()
    warnings.simplefilter("ignore", DeprecationWarning)  # the test forks with threads running
    wait_for_start()
    pid = os.fork()
    if not pid:
        admission = breaker.sync.allow()
        breaker.sync.record_failure("in the child", admission)
        os._exit(0 if breaker.is_degraded else 1)
    _, status = os.waitpid(pid, 0)
    wait_until(lambda: breaker.is_degraded)
    send_result({"status": status, "reason": breaker.sync.get_state().reason})


def fail_in_an_outage(
    number: int, url: str, backend: str, config: dict[str, Any], *, workers: int, use_async: bool
) -> None:
    """Learn the streak and the size of the fleet, fail until refused, and wait to rejoin."""
    breaker, upstream = breaker_of(url, config), Backend(backend)
    wait_until(lambda: breaker.sync.get_state().failures == config["threshold"] - 2)
    wait_until(lambda: (breaker.store.worker_count or 0) >= workers)
    if use_async:
        attempts = asyncio.run(_fail_until_refused(breaker, upstream))
    else:
        wait_for_start()
        attempts = _count_until_refused(breaker(upstream.fail))
    wait_until(lambda: breaker.fallback is None)  # a worker that exits in an outage may report nothing
    send_result(attempts)


def exit_in_an_outage(number: int, url: str, config: dict[str, Any], failures: int) -> None:
    """Fail while the store does not answer, and exit at the second signal, before the fleet rejoins."""
    breaker = breaker_of(url, config)
    breaker.sync.get_state()  # connects
    wait_for_start()
    for _ in range(failures):
        breaker.sync.record_failure("down")
    send_result({"fallback": breaker.fallback is not None})
    wait_for_start()


JOBS: dict[str, Callable[..., None]] = {
    job.__name__: job
    for job in (
        trip_blocking,
        trip_async,
        crowd,
        hang_in_probe,
        call_until_admitted,
        call_steadily,
        fork_and_trip,
        fail_in_an_outage,
        exit_in_an_outage,
    )
}
