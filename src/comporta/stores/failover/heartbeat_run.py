"""One run of the heartbeat's thread: which worker it registers, and how it waits."""

from __future__ import annotations

from comporta.clock import MONOTONIC, Clock
from comporta.stores.failover.worker_registry import Worker
from comporta.threads import BackgroundThread


class HeartbeatRun(BackgroundThread):
    """One run of the thread: the identity that it registers, and whether it removes it when it stops."""

    __slots__ = ("_clock", "leaves_registry", "worker")

    def __init__(self, worker: Worker, clock: Clock = MONOTONIC) -> None:
        super().__init__()
        self.worker = worker
        self.leaves_registry = False
        self._clock = clock

    def wait_until(self, moment_ns: int) -> bool:
        """Wait until a moment of the clock; false if asked to stop before."""
        while True:
            self.wake.wait(0)  # a wake-up for other work does not end this wait
            if self.stop_requested:
                return False
            left_ns = moment_ns - self._clock.now_ns()
            if left_ns <= 0:
                return True
            self._clock.wait(self.wake, left_ns / 1e9)
