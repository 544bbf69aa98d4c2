"""How rules of degradation do when an upstream's quota falls and rises: a simulation, the same each time.

Ten workers share one limit on a clock moved by hand and ask as fast as it lets them. The upstream has a quota
of its own and refuses what is above it; what it answers is heard a round trip later. The limits, drops and
climbs are the real ones, step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.measure import Effort
from benchmarks.report import Section, Table
from comporta import Degradation, LimitConfig, TokenBucketLimiter
from comporta.limits.degradation import KEPT_OF_ACCEPTED
from comporta.limits.token_bucket import TokenBucket
from comporta.stores.base import State
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

PHASES = ((60, 100), (90, 30), (90, 100))
"""For how many seconds the upstream has which quota per second."""

WORKERS = 10
TICK_US = 10_000
ROUND_TRIP_TICKS = 10
_LIMIT = LimitConfig(100, 10)

Reports = Callable[[Degradation, float], None]


def _steps(degradation: Degradation, _: float) -> None:
    degradation.sync.record_error()


def _accepted(degradation: Degradation, accepted_rate: float) -> None:
    degradation.sync.record_error(accepted_rate)


def _halved(degradation: Degradation, _: float) -> None:
    degradation.sync.record_error(degradation.current / 2 / KEPT_OF_ACCEPTED)


RULES: dict[str, tuple[str, Reports | None]] = {
    "no degradation": ("steps", None),
    'rule="steps"': ("steps", _steps),
    'rule="accepted"': ("accepted", _accepted),
    "halving, for comparison": ("accepted", _halved),
}


class Upstream:
    """A bucket of the quota of the moment, on the simulation's time."""

    def __init__(self) -> None:
        self._state: State | None = None

    def accepts(self, now_us: int, quota: int) -> bool:
        """Take a call, or refuse it."""
        new, wait_us = TokenBucket(max(1, quota // 10), quota, 1_000_000).step(self._state, now_us, 1)
        self._state = new or self._state
        return not wait_us


@dataclass
class Run:
    """What came of one rule: for each second what was accepted, refused, and the limit at its end."""

    accepted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    def sums(self, phase: int) -> tuple[int, int]:
        """Return what was accepted and refused in a phase."""
        start = sum(seconds for seconds, _ in PHASES[:phase])
        upto = start + PHASES[phase][0]
        return sum(self.accepted[start:upto]), sum(self.refused[start:upto])


def simulated(rule: str, report: Reports | None) -> Run:
    """Play the phases under a rule."""
    clock = ManualClock(1_000_000)
    limiter = TokenBucketLimiter(_LIMIT, MemoryStore(clock), "upstream")
    degradation = Degradation(limiter, rule=rule)
    upstream, run = Upstream(), Run()
    under_way: deque[list[bool]] = deque([[] for _ in range(ROUND_TRIP_TICKS)])
    last_second: deque[int] = deque([0] * (1_000_000 // TICK_US), maxlen=1_000_000 // TICK_US)
    for quota in (quota for seconds, quota in PHASES for _ in range(seconds)):
        run.accepted.append(0)
        run.refused.append(0)
        for _ in range(1_000_000 // TICK_US):
            now_us = clock.now_ns() // 1000
            # whom it refuses at a moment it refuses all who come after
            granted = next((number for number in range(WORKERS) if not limiter.sync.acquire()), WORKERS)
            under_way.append([upstream.accepts(now_us, quota) for _ in range(granted)])
            heard = under_way.popleft()
            last_second.append(heard.count(True))
            run.accepted[-1] += heard.count(True)
            run.refused[-1] += heard.count(False)
            for passed in heard:
                if passed:
                    degradation.sync.record_success()
                elif report is not None:
                    report(degradation, sum(last_second))
            clock.advance(TICK_US / 1e6)
        run.limit.append(degradation.current)
    return run


def all_runs() -> dict[str, Run]:
    """Play the phases under each rule; what is told meanwhile is told to nobody."""
    import logging  # noqa: PLC0415 - hundreds of lines about changes that are the subject here

    logger = logging.getLogger("comporta")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        return {name: simulated(*rule) for name, rule in RULES.items()}
    finally:
        logger.setLevel(level)


def run(_: Effort) -> Section:
    """Show goodput and refusals of each phase."""
    section = Section(
        "Degradation",
        f"A simulation, the same each time: {WORKERS} workers under one limit of 100/s, an upstream whose "
        "quota goes from 100/s to 30/s and back, answers after 100 ms.",
    )
    head = [""]
    for seconds, quota in PHASES:
        head += [f"{seconds} s at {quota}/s: accepted", "refused"]
    rows = []
    for name, found in all_runs().items():
        figures = [figure for phase in range(len(PHASES)) for figure in found.sums(phase)]
        rows.append([name, *map(str, figures)])
    section.tables.append(Table("Accepted and refused", head, rows))
    return section
