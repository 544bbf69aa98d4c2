"""A simulated worker: one process with its own clocks, randomness, threads and process-wide objects.

A worker that is restarted is a new object: of a killed process, only what it wrote elsewhere remains.
This module knows neither what the worker's threads do nor how it is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from comporta.simulation.virtual_time import Scheduler, SimulatedThread

UNIX_START_NS = 1_700_000_000 * 1_000_000_000
"""Unix time when a simulation begins, by a correct clock."""

_MILLION = 1_000_000


class SimulatedWorker:
    """One process. ``index`` is its place in the fleet, ``incarnation`` counts its restarts.

    ``drift_ppm`` is how fast its clocks run, in millionths above the true rate.
    """

    def __init__(
        self, scheduler: Scheduler, index: int, incarnation: int, *, seed: int, drift_ppm: int = 0
    ) -> None:
        self.index = index
        self.incarnation = incarnation
        self.name = f"w{index}" if not incarnation else f"w{index}.{incarnation}"
        self.host = "simulated"
        self.pid = 1000 + 1000 * incarnation + index
        self.drift_ppm = drift_ppm
        self.unix_error_ns = 0
        self.is_running = True
        self.is_dead = False
        self.deferred: list[tuple[SimulatedThread, int]] = []
        self.threads: dict[SimulatedThread, None] = {}
        self.process_objects: dict[Any, Any] = {}
        self.random = Random(f"{seed}:{self.name}")
        self.monotonic_start_ns = self.random.randrange(1, 10**15)
        self._scheduler = scheduler

    def monotonic_ns(self) -> int:
        """Return this worker's monotonic clock, which starts at any value and drifts."""
        now_ns = self._scheduler.now_ns
        if self.drift_ppm:
            now_ns += now_ns * self.drift_ppm // _MILLION
        return self.monotonic_start_ns + now_ns

    def unix_ns(self) -> int:
        """Return this worker's Unix time, which drifts and can be set wrong."""
        now_ns = self._scheduler.now_ns
        return UNIX_START_NS + now_ns + now_ns * self.drift_ppm // _MILLION + self.unix_error_ns

    def local_delay_ns(self, nanoseconds: int) -> int:
        """Return how long a wait of ``nanoseconds`` by its own clock takes in virtual time."""
        if self.drift_ppm:
            return nanoseconds * _MILLION // (_MILLION + self.drift_ppm) + 1
        return nanoseconds

    def start_thread(self, work: Callable[[], object]) -> SimulatedThread:
        """Start a thread of this process."""
        return self._scheduler.start(self, work)

    def start_thread_after(self, delay_ns: int, work: Callable[[], object]) -> None:
        """Start a thread of this process after some nanoseconds of its own clock."""
        self._scheduler.start_after(self.local_delay_ns(delay_ns), self, work)

    def pause(self) -> None:
        """Stop all threads, as SIGSTOP or a machine that is out of memory does; clocks continue."""
        if not self.is_dead:
            self.is_running = False

    def resume(self) -> None:
        """Let the threads run again, in the order in which they became due."""
        if self.is_dead or self.is_running:
            return
        self.is_running = True
        deferred, self.deferred = self.deferred, []
        for thread, ticket in deferred:
            self._scheduler.call_after(0, thread.resume, ticket)

    def kill(self) -> None:
        """End the process, as SIGKILL does: it runs and sends nothing any more."""
        self.is_dead = True
        self.is_running = False
        self.deferred.clear()
        for thread in list(self.threads):
            thread.end()
        self.threads.clear()
        self.process_objects.clear()
