"""The machine as a simulated worker sees it: everything comes from the worker whose thread runs.

Installed with :func:`comporta.runtime.install` for the length of a simulation. While no worker's thread runs
(the network delivers, a fault acts), the runtime answers for a separate process, which never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comporta.runtime import PerProcess, Runtime, WaitingLock, WaitingQueue
from comporta.simulation.virtual_time import NANOSECONDS, Scheduler, SimulatedLock, SimulatedQueue
from comporta.simulation.worker import SimulatedWorker


class SimulatedRuntime(Runtime):
    """Time, randomness, threads and identity of the simulated worker whose thread runs."""

    def __init__(self, scheduler: Scheduler, *, seed: int) -> None:
        self._scheduler = scheduler
        self.outside = SimulatedWorker(scheduler, -1, 0, seed=seed)

    def worker(self) -> SimulatedWorker:
        """Return the worker whose thread runs, or whose request the server carries out."""
        thread = self._scheduler.current
        owner = self._scheduler.acting_for if thread is None else thread.owner
        return owner or self.outside  # type: ignore[return-value]

    def monotonic_ns(self) -> int:
        """Return the nanoseconds of the worker's monotonic clock; every call reads it many times."""
        scheduler = self._scheduler
        thread = scheduler.current
        owner = scheduler.acting_for or self.outside if thread is None else thread.owner
        if owner.drift_ppm:  # type: ignore[attr-defined]
            return owner.monotonic_ns()  # type: ignore[attr-defined, no-any-return]
        return owner.monotonic_start_ns + scheduler.now_ns  # type: ignore[attr-defined, no-any-return]

    def monotonic(self) -> float:
        """Return the same as float seconds."""
        return self.worker().monotonic_ns() / NANOSECONDS

    def unix_ns(self) -> int:
        """Return the worker's Unix time in nanoseconds."""
        return self.worker().unix_ns()

    def unix_time(self) -> float:
        """Return the same as float seconds."""
        return self.worker().unix_ns() / NANOSECONDS

    def random_bytes(self, size: int) -> bytes:
        """Return ``size`` bytes of the worker's random stream."""
        return self.worker().random.randbytes(size)

    def pid(self) -> int:
        """Return the number of the worker's process."""
        return self.worker().pid

    def host(self) -> str:
        """Return the name of the worker's host."""
        return self.worker().host

    def sleep(self, seconds: float) -> None:
        """Suspend the thread."""
        scheduler, worker = self._scheduler, self.worker()
        ends_ns = scheduler.now_ns + worker.local_delay_ns(max(0, round(seconds * NANOSECONDS)))
        scheduler.sleep_until(ends_ns)

    def waiting_lock(self) -> WaitingLock:
        """Return a free lock of virtual time."""
        return SimulatedLock(self._scheduler)

    def waiting_queue(self) -> WaitingQueue[Any]:
        """Return an empty queue of virtual time."""
        return SimulatedQueue(self._scheduler)

    def start_thread(self, work: Callable[[], object], name: str) -> None:
        """Run ``work`` on a thread of the worker; ``RuntimeError`` if its process has ended."""
        self.start_bare_thread(work)

    def start_bare_thread(self, work: Callable[[], object]) -> None:
        """Run ``work`` on a thread of the worker; ``RuntimeError`` if its process has ended."""
        worker = self.worker()
        if worker is self.outside or worker.is_dead:
            raise RuntimeError("can't start new thread: the simulated process has ended")
        worker.start_thread(work)

    def call_without_signals(self, work: Callable[[], object]) -> bool:
        """Call ``work``: a simulated process gets no signals."""
        work()
        return True

    def process_objects(self) -> dict[PerProcess[Any], Any]:
        """Return the objects that exist once in the worker's process."""
        return self.worker().process_objects
