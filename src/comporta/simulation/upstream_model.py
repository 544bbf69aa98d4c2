"""A model of an upstream: a capacity, a queue and errors, on virtual time.

The upstream works at a fixed capacity. A call that finds all places taken waits in the queue, and a call that
finds the queue full is answered with 503. A caller that gives up does not withdraw its call: the upstream
still works on it, as real upstreams do. This is what makes retries dangerous.

The model knows nothing about policies; callers reach it through them.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapreplace
from math import ceil
from random import Random
from typing import Final, NamedTuple

from comporta.simulation.upstream import UpstreamAnswer


class ModelOptions(NamedTuple):
    """How an upstream behaves.

    ``capacity`` is in calls per second (``None``: without a limit), ``latency`` the seconds of a call that
    need not wait, ``errors`` the fraction of calls that end with 500, and ``queue`` the longest wait in
    seconds.
    """

    capacity: float | None = None
    latency: float = 0.1
    errors: float = 0.0
    queue: float = 5.0


class ModelFault:
    """The current faults of an upstream; the numbers count the faults that act together."""

    def __init__(self) -> None:
        self.down = 0
        self.refusing = 0
        self.extra_seconds = 0.0
        self.pause_seconds = 0.0


OK_ANSWER: Final = UpstreamAnswer(200, {})
ERROR_ANSWER: Final = UpstreamAnswer(500, {})
FULL_ANSWER: Final = UpstreamAnswer(503, {})


class UpstreamModel:
    """One upstream. ``sleep`` suspends the caller, ``now`` returns virtual time in seconds."""

    def __init__(
        self,
        options: ModelOptions,
        random: Random,
        now: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.fault = ModelFault()
        self._options = options
        self._random = random.random
        self._now = now
        self._sleep = sleep
        places = 1 if options.capacity is None else max(1, ceil(options.capacity * options.latency))
        self._seconds = options.latency if options.capacity is None else places / options.capacity
        self._free_at = [0.0] * places

    def call(self, timeout: float | None) -> UpstreamAnswer:
        """Make a call; raises ``TimeoutError`` after ``timeout`` seconds, as the client of a worker would."""
        fault = self.fault
        if fault.down:
            self._sleep(min(0.01, self._options.latency))
            raise ConnectionRefusedError("Connection refused")
        if fault.refusing:
            self._sleep(min(0.01, self._options.latency))
            return UpstreamAnswer(429, {"retry-after": f"{fault.pause_seconds:g}"})
        now, seconds = self._now(), self._seconds + fault.extra_seconds
        starts = max(now, self._free_at[0])
        if starts - now > self._options.queue:
            self._sleep(min(0.01, self._options.latency))
            return FULL_ANSWER
        if self._options.capacity is not None:
            heapreplace(self._free_at, starts + seconds)
        needed = starts + seconds - now
        if timeout is not None and needed > timeout:
            self._sleep(timeout)
            raise TimeoutError("timed out")
        self._sleep(needed)
        return ERROR_ANSWER if self._random() < self._options.errors else OK_ANSWER
