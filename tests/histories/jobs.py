"""Jobs of worker processes that record a history: what they call, when, and what they get."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from tests.processes.jobs import make_limiter, send_result, wait_for_start

from comporta import BaseLimiter, ConcurrencyLimit, Permit
from comporta.clock import MONOTONIC, Clock
from comporta.stores.base import Store
from comporta.stores.shared.store import SharedStore

ROUND_NS = 5_000_000
"""The rounds begin at least this far apart, in all processes at the same moment."""

Recorded = list[tuple[int, int, Any, Any, list[int] | None]]
"""For each call: its beginning, end, request, reply, and the moments at which the store read its clock.

Times are in µs of the store's clock. The moments are unknown where a server reads it.
"""


class RecordingClock:
    """The monotonic clock of this machine, which notes what is read."""

    def __init__(self) -> None:
        self.readings_us: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(MONOTONIC, name)

    def now_ns(self) -> int:
        now_ns = MONOTONIC.now_ns()
        self.readings_us.append(now_ns // 1000)
        return now_ns


class History:
    """Records the calls of this process."""

    def __init__(self, url: str) -> None:
        self._clock: RecordingClock | None = None
        self.state: str | Store = url
        if url.startswith("shared:"):
            self._clock = RecordingClock()
            name = url.removeprefix("shared://").partition("?")[0]
            self.state = SharedStore(name, cast(Clock, self._clock), memory=8, lock_timeout=5)
        self._calls: Recorded = []

    def call(self, request: Any, function: Callable[[], Any]) -> Any:
        """Make a call and record it; return its reply."""
        if self._clock is not None:
            self._clock.readings_us.clear()
        began_us = self._now_us()
        reply = function()
        ended_us = self._now_us()
        moments = None if self._clock is None else list(self._clock.readings_us)
        self._calls.append((began_us, ended_us, request, reply, moments))
        return reply

    def end_round(self) -> Recorded:
        """Return the calls since the last round."""
        calls, self._calls = self._calls, []
        return calls

    def _now_us(self) -> int:
        """Return the time by the store's clock: this machine's, or that of the server on this machine."""
        return (time.time_ns() if self._clock is None else time.monotonic_ns()) // 1000


def record_limit(*, number: int, url: str, limit: dict[str, Any], rounds: int, calls: int, seed: str) -> None:
    """Call one limit, with another key in each round."""
    history, draw = History(url), random.Random(f"{seed} {number}")
    limiter = make_limiter(history.state, limit)
    limiter.sync.peek("warm")
    began_ns = wait_for_start()
    histories = []
    for round_number in range(rounds):
        _wait_until(began_ns + round_number * ROUND_NS)
        _limit_round(history, limiter, f"{seed}-{round_number}", calls, draw)
        histories.append(history.end_round())
    send_result({"histories": histories, "fallback": limiter.fallback is not None})


def _limit_round(history: History, limiter: BaseLimiter, key: str, calls: int, draw: random.Random) -> None:
    for call in range(calls):
        method = draw.choice(("decide", "decide", "acquire", "release", "settle")) if call else "decide"
        amount = draw.randint(1, 3) if method != "acquire" else 1
        if method == "settle":
            amount = draw.choice((-2, -1, 1, 2))
        history.call((method, amount), partial(_call_limit, limiter, method, key, amount))


def _call_limit(limiter: BaseLimiter, method: str, key: str, amount: int) -> Any:
    if method == "decide":
        allowed, _, remaining, retry_after, reset_after, *_ = limiter.sync.decide(key, amount)
        return [allowed, remaining, round(retry_after * 1e6), round(reset_after * 1e6)]
    if method == "acquire":
        return limiter.sync.acquire(key)
    if method == "settle":
        return limiter.sync.settle(key, max(0, -amount), max(0, amount))
    return limiter.sync.release(key, amount)


def record_permits(*, number: int, url: str, max_permits: int, rounds: int, calls: int, seed: str) -> None:
    """Acquire, renew and release permits of one limit, which is another one in each round."""
    history, draw = History(url), random.Random(f"{seed} {number}")
    limits = [
        ConcurrencyLimit(f"{seed}-{round_number}", max_permits, permit_ttl=3600, state=history.state)
        for round_number in range(rounds)
    ]
    limits[0].sync.holders()
    began_ns = wait_for_start()
    histories = []
    for round_number, limit in enumerate(limits):
        _wait_until(began_ns + round_number * ROUND_NS)
        _permit_round(history, limit, calls, draw)  # what is held stays: other processes may be in this round
        histories.append(history.end_round())
    send_result({"histories": histories, "fallback": limits[0].fallback is not None})


def _permit_round(history: History, limit: ConcurrencyLimit, calls: int, draw: random.Random) -> None:
    """Make the calls of a round."""
    held: list[Permit] = []
    for _ in range(calls):
        method = draw.choice(("acquire", "acquire", "renew", "release")) if held else "acquire"
        if method == "acquire":
            request = ["acquire"]
            permit = history.call(request, partial(_acquire_permit, limit, request))
            held += [Permit(*request[1:])] if permit else []
        else:
            permit = draw.choice(held)
            history.call((method, *permit), partial(getattr(limit.sync, method), permit))
            if method == "release":
                held.remove(permit)


def _acquire_permit(limit: ConcurrencyLimit, request: list[str]) -> bool:
    """Acquire a permit and add it to the request; a refusal is the same for every permit."""
    permit = limit.sync.acquire()
    request += permit or ("0" * 16, "refused:0")
    return permit is not None


def _wait_until(moment_ns: int) -> None:
    while time.monotonic_ns() < moment_ns:
        pass


JOBS = {"record_limit": record_limit, "record_permits": record_permits}
