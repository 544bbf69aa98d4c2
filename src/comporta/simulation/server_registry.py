"""The registry of live workers as a server keeps it: each worker by the time of its last heartbeat.

A server keeps the registry in a sorted set, whose cost hardly grows with the fleet. The Python step of a
heartbeat unpacks and packs a record of all workers, of which a local engine keeps at most 170. So the
simulated server has its own registry, with the replies of the Lua script. The barrier at which workers rejoin
is a state like any other.

This module does not know who sends the operations, and it keeps no time.
"""

from __future__ import annotations

from collections import OrderedDict

from comporta.clock import to_us
from comporta.stores.failover.worker_registry import DEAD_SECONDS, LiveWorker, Worker

_DEAD_US = to_us(DEAD_SECONDS)


class ServerRegistry:
    """The live workers and the times of their last heartbeats in microseconds, the oldest first."""

    def __init__(self) -> None:
        self._last_us: OrderedDict[Worker, int] = OrderedDict()
        self._latest_us = 0

    def copy(self) -> ServerRegistry:
        """Return a copy, for a snapshot."""
        copied = ServerRegistry()
        copied._last_us, copied._latest_us = self._last_us.copy(), self._latest_us
        return copied

    def beat(self, worker: Worker, now_us: int) -> int:
        """Record a heartbeat; returns the worker count."""
        self._last_us[worker] = now_us
        self._last_us.move_to_end(worker)
        return self._count(now_us)

    def remove(self, worker: Worker, now_us: int) -> int:
        """Remove a worker that exits; returns how many workers are left."""
        self._last_us.pop(worker, None)
        return self._count(now_us)

    def live_workers(self, now_us: int) -> list[LiveWorker]:
        """Return the live workers with the ages of their last heartbeats."""
        return [
            LiveWorker(worker, max(0, now_us - last_us) / 1e6)
            for worker, last_us in self._last_us.items()
            if now_us - last_us < _DEAD_US
        ]

    def _count(self, now_us: int) -> int:
        """Drop dead workers and return how many are left; a heartbeat from the future counts from now."""
        last_us = self._last_us
        if now_us < self._latest_us:  # the clock was set back
            last_us.update({worker: now_us for worker, each_us in last_us.items() if each_us > now_us})
        self._latest_us = now_us
        while last_us:
            oldest = next(iter(last_us))
            if now_us - last_us[oldest] < _DEAD_US:
                break
            del last_us[oldest]
        return len(last_us)
