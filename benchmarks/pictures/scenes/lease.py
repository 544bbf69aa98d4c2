"""Calls to the store with leases and without, while the load rises above the limit."""

from __future__ import annotations

from typing import Any

from benchmarks.pictures.simulated import BEGINS_NS, SimulatedClock, counts_per_slot, deterministic
from comporta import LimitConfig, TokenBucketLimiter
from comporta.cli.sim_charts import Bars, Level, Note, Panel, Picture
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore

_ENDS, _SLOT, _TICK_NS, _WORKERS = 6.0, 0.1, 1_000_000, 3
_RATE, _BURST = 3000, 300
_LOADS = ((2.0, 0.2), (4.0, 0.8), (6.0, 2.0))
"""The end of each phase, and the calls per millisecond of each worker."""


class RemoteStore(Store):
    """A store on another machine: every operation counts as a call."""

    worker_count = _WORKERS

    def __init__(self, inner: MemoryStore, calls: list[float]) -> None:
        self._inner = inner
        self._calls = calls
        self.clock = inner.clock

    def apply(self, operation: Any) -> Any:
        """Count and apply an operation."""
        self._calls.append((self.clock.now_ns() - BEGINS_NS) / 1e9)
        return self._inner.apply(operation)

    async def apply_async(self, operation: Any) -> Any:
        """Count and apply an operation."""
        return self.apply(operation)


def picture() -> Picture:
    """Simulate the same load with and without leases."""
    granted, leased = _run(lease=True)
    _, exact = _run(lease=False)
    before = [sum(moment < _LOADS[1][0] for moment in calls) for calls in (exact, leased)]
    return Picture(
        "Many decisions with one call: a leased limit",
        "Three workers, one limit of 3000/s. Each decides with its leased tokens, and leases more when they "
        "are used.",
        [
            Panel(
                "granted per 100 ms, with leases",
                [
                    Bars("granted", "blue", counts_per_slot(granted, _SLOT, _ENDS), _SLOT),
                    Level("3000/s", "red", _RATE * _SLOT),
                ],
                620,
                (0, 300, 600),
                80,
            ),
            Panel(
                "calls to the store per 100 ms",
                [
                    Bars(
                        "without leases: one per decision",
                        "grey",
                        counts_per_slot(exact, _SLOT, _ENDS),
                        _SLOT,
                    ),
                    Bars("with leases", "green", counts_per_slot(leased, _SLOT, _ENDS), _SLOT),
                    Note(0, 400, f"{before[1]} calls instead of {before[0]}"),
                    Note(6, 650, "above the limit, refusals need no call", "end"),
                ],
                720,
                (0, 300, 600),
                120,
            ),
        ],
        ends=_ENDS,
        every=1,
    )


def _run(*, lease: bool) -> tuple[list[float], list[float]]:
    clock = SimulatedClock()
    granted: list[float] = []
    calls: list[float] = []
    state = MemoryStore(clock)
    config = LimitConfig(_RATE, _BURST, lease=lease)
    workers = [TokenBucketLimiter(config, RemoteStore(state, calls), "all").sync for _ in range(_WORKERS)]
    due = 0.0
    with deterministic():
        while clock.seconds < _ENDS:
            due += next(load for until, load in _LOADS if clock.seconds < until)
            for _ in range(int(due)):
                granted += [clock.seconds for worker in workers if worker.acquire()]
            due -= int(due)
            clock.ns += _TICK_NS
    return granted, calls
