"""How often the state is asked, with leases and without, while the load rises above the limit."""

from __future__ import annotations

from typing import Any

from benchmarks.pictures.drawing import Bars, Level, Note, Panel, Picture
from benchmarks.pictures.simulated import BEGINS_NS, SimulatedClock, counted, the_same_each_time
from comporta import LimitConfig, TokenBucketLimiter
from comporta.stores.memory import MemoryStore

_ENDS, _SLOT, _TICK_NS, _WORKERS = 6.0, 0.1, 1_000_000, 3
_RATE, _BURST = 3000, 300
_LOADS = ((2.0, 0.2), (4.0, 0.8), (6.0, 2.0))
"""Until when each worker asks how often in a millisecond."""


class AskedStore:
    """A state that is elsewhere: every operation on it is a call, and is counted."""

    def __init__(self, inner: MemoryStore, calls: list[float]) -> None:
        self._inner = inner
        self._calls = calls
        self.clock = inner.clock
        self.workers = _WORKERS

    def apply(self, operation: Any) -> Any:
        """Count it and carry it out."""
        self._calls.append((self.clock.now_ns() - BEGINS_NS) / 1e9)
        return self._inner.apply(operation)

    async def apply_async(self, operation: Any) -> Any:
        """Do the same."""
        return self.apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the records of a space."""
        return self._inner.entries(space)

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Do the same."""
        return self.entries(space)

    def close(self) -> None:
        """Let go of nothing."""


def picture() -> Picture:
    """Play the same load under both."""
    granted, leased = _played(lease=True)
    _, asked = _played(lease=False)
    before = [sum(moment < _LOADS[1][0] for moment in calls) for calls in (asked, leased)]
    return Picture(
        "Many decisions in one call: a limit on lease",
        "Three workers, one limit of 3000/s. Each decides with what it has in hand, and asks for more when "
        "that is used up.",
        [
            Panel(
                "granted in each 100 ms, with leases",
                [
                    Bars("granted", "blue", counted(granted, _SLOT, _ENDS), _SLOT),
                    Level("3000/s", "red", _RATE * _SLOT),
                ],
                620,
                (0, 300, 600),
                80,
            ),
            Panel(
                "calls to the state in each 100 ms",
                [
                    Bars("without leases: one a decision", "grey", counted(asked, _SLOT, _ENDS), _SLOT),
                    Bars("with leases", "green", counted(leased, _SLOT, _ENDS), _SLOT),
                    Note(0, 400, f"{before[1]} calls in the place of {before[0]}"),
                    Note(6, 650, "above the limit refusals cost no call", "end"),
                ],
                720,
                (0, 300, 600),
                120,
            ),
        ],
        ends=_ENDS,
        every=1,
    )


def _played(*, lease: bool) -> tuple[list[float], list[float]]:
    clock = SimulatedClock()
    granted: list[float] = []
    calls: list[float] = []
    state = MemoryStore(clock)
    config = LimitConfig(_RATE, _BURST, lease=lease)
    workers = [TokenBucketLimiter(config, AskedStore(state, calls), "all").sync for _ in range(_WORKERS)]
    due = 0.0
    with the_same_each_time():
        while clock.seconds < _ENDS:
            due += next(load for until, load in _LOADS if clock.seconds < until)
            for _ in range(int(due)):
                granted += [clock.seconds for worker in workers if worker.acquire()]
            due -= int(due)
            clock.ns += _TICK_NS
    return granted, calls
