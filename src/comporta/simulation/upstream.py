"""The upstream of a simulation: it takes some time to answer, fails, is slow or refuses, as faults say."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from comporta.runtime import RUNTIME
from comporta.simulation.history import FleetHistory, Request
from comporta.simulation.scheduler import Scheduler

_LATE_SECONDS = 1.5


class UpstreamAnswer(NamedTuple):
    """An HTTP response, as far as policies look at it."""

    status_code: int
    headers: dict[str, str]


class _Begun(NamedTuple):
    """A request in flight: when it began, how many seconds it takes, and whether it will fail."""

    at_ns: int
    latency: float
    fails: bool


class UpstreamSimulation:
    """The upstream. ``latency`` is in seconds; ``retry_after`` is the pause that it asks for with 429.

    ``failing_share`` is the share of requests that it answers with 503. While ``late_share`` is not 0, it
    answers all requests with 503, and this share of them later.
    """

    def __init__(self, scheduler: Scheduler, history: FleetHistory, random: Random) -> None:
        self.status = 200
        self.failing_share = self.late_share = 0.0
        self.latency = 0.05
        self.retry_after = 0.0
        self.in_flight = 0
        self._scheduler = scheduler
        self._random = random
        self._history = history

    def request(self, worker: str, *, is_retry: bool) -> UpstreamAnswer:
        """Answer a blocking request."""
        began = self._begin()
        try:
            RUNTIME.sleep(began.latency)
        finally:
            answer = self._end(began, worker, is_retry=is_retry)
        return answer

    async def request_async(self, worker: str, *, is_retry: bool) -> UpstreamAnswer:
        """Answer an awaiting request."""
        began = self._begin()
        try:
            await asyncio.sleep(began.latency)
        finally:
            answer = self._end(began, worker, is_retry=is_retry)
        return answer

    def _begin(self) -> _Begun:
        self.in_flight += 1
        is_late = self.late_share and self._random.random() < self.late_share
        latency = self.latency + _LATE_SECONDS if is_late else self.latency
        return _Begun(self._scheduler.now_ns, latency, fails=bool(self.late_share))

    def _end(self, began: _Begun, worker: str, *, is_retry: bool) -> UpstreamAnswer:
        self.in_flight -= 1
        is_failing = began.fails or (self.failing_share and self._random.random() < self.failing_share)
        status = 503 if is_failing else self.status
        self._history.add(Request(began.at_ns, self._scheduler.now_ns, worker, status, is_retry))
        headers = {"retry-after": f"{self.retry_after:g}"} if status == 429 else {}
        return UpstreamAnswer(status, headers)
