"""The upstream of a simulation: it takes some time to answer, and faults make it fail, slow or refuse."""

from __future__ import annotations

import asyncio
from random import Random
from typing import NamedTuple

from comporta.runtime import RUNTIME
from comporta.simulation.faults import Fault
from comporta.simulation.run_history import FleetHistory, Request
from comporta.simulation.virtual_time import Scheduler

LATENCY_SECONDS = 0.05
"""How long a request takes while nothing is wrong."""

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
    """The upstream, with the faults that have begun and not ended; of each kind the latest fault counts.

    It answers 503 in ``upstream_errors`` and ``upstream_late``, to some requests in ``upstream_flaky``, and
    otherwise 429 in ``upstream_refuses``; each ``upstream_slow`` makes it slower.
    """

    def __init__(self, scheduler: Scheduler, history: FleetHistory, random: Random) -> None:
        self._faults: list[Fault] = []
        self._scheduler = scheduler
        self._random = random
        self._history = history

    def begin(self, fault: Fault) -> None:
        """Begin a fault."""
        self._faults.append(fault)

    def end(self, fault: Fault) -> None:
        """End a fault; other faults continue."""
        self._faults.remove(fault)

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
        slower = sum(fault.number for fault in self._faults if fault.kind == "upstream_slow")
        late_share = self._number("upstream_late")
        is_late = late_share and self._random.random() < late_share
        latency = LATENCY_SECONDS + slower + (_LATE_SECONDS if is_late else 0)
        return _Begun(self._scheduler.now_ns, latency, fails=bool(late_share))

    def _end(self, began: _Begun, worker: str, *, is_retry: bool) -> UpstreamAnswer:
        failing_share = self._number("upstream_flaky")
        is_failing = began.fails or (failing_share and self._random.random() < failing_share)
        status, headers = 200, {}
        if is_failing or self._has("upstream_errors"):
            status = 503
        elif self._has("upstream_refuses"):
            status, headers = 429, {"retry-after": f"{self._number('upstream_refuses'):g}"}
        self._history.add(Request(began.at_ns, self._scheduler.now_ns, worker, status, is_retry))
        return UpstreamAnswer(status, headers)

    def _has(self, kind: str) -> bool:
        return any(fault.kind == kind for fault in self._faults)

    def _number(self, kind: str) -> float:
        """Return the number of the latest fault of a kind, 0 if there is none."""
        return next((fault.number for fault in reversed(self._faults) if fault.kind == kind), 0.0)
