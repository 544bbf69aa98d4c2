"""How the degradation rules follow an upstream's quota that falls and rises: a deterministic simulation.

Ten workers share one limit on a manual clock and call as fast as it allows. The upstream refuses calls above
its quota; its responses arrive a round trip later. The limiter and the degradation are the real code.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from comporta import Degradation, LimitConfig, TokenBucketLimiter
from comporta.limits.overrides.degradation import ACCEPTED_FRACTION
from comporta.limits.strategies.token_bucket import TokenBucketStrategy
from comporta.stores.base import State
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

PHASES = ((60, 100), (90, 30), (90, 100))
"""The duration in seconds and the quota per second of each phase."""

WORKERS = 10
TICK_US = 10_000
ROUND_TRIP_TICKS = 10
_LIMIT = LimitConfig(100, 10)

USED_MIN = 0.92
"""The promise: the smallest fraction of the quota that the best rule uses once it has begun to move."""

Reports = Callable[[Degradation, float], None]


def _steps(degradation: Degradation, _: float) -> None:
    degradation.sync.record_error()


def _accepted(degradation: Degradation, accepted_rate: float) -> None:
    degradation.sync.record_error(accepted_rate)


def _cubic(degradation: Degradation, _: float) -> None:
    degradation.sync.record_error(took=ROUND_TRIP_TICKS * TICK_US / 1e6)


def _halved(degradation: Degradation, _: float) -> None:
    degradation.sync.record_error(degradation.current / 2 / ACCEPTED_FRACTION)


ACCEPTED, CUBIC = 'rule="accepted"', 'rule="cubic"'
RULES: dict[str, tuple[str, Reports | None]] = {
    "no degradation": ("steps", None),
    'rule="steps"': ("steps", _steps),
    ACCEPTED: ("accepted", _accepted),
    CUBIC: ("cubic", _cubic),
    "halving, for comparison": ("accepted", _halved),
}


class Upstream:
    """A token bucket with the current quota, on simulated time."""

    def __init__(self) -> None:
        self._state: State | None = None

    def accepts(self, now_us: int, quota: int) -> bool:
        """Return whether a call is accepted."""
        new, wait_us = TokenBucketStrategy(max(1, quota // 10), quota, 1_000_000).step(self._state, now_us, 1)
        self._state = new or self._state
        return not wait_us


@dataclass
class Run:
    """The result of one rule: accepted and refused calls of each second, and the limit at its end."""

    accepted: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    def sums(self, phase: int) -> tuple[int, int]:
        """Return the accepted and refused calls of a phase."""
        start = sum(seconds for seconds, _ in PHASES[:phase])
        upto = start + PHASES[phase][0]
        return sum(self.accepted[start:upto]), sum(self.refused[start:upto])

    def used(self) -> float:
        """Return the fraction of the quota that was used since it began to move."""
        moving = range(1, len(PHASES))
        quota = sum(PHASES[phase][0] * PHASES[phase][1] for phase in moving)
        return sum(self.sums(phase)[0] for phase in moving) / quota


def simulate(rule: str, report: Reports | None) -> Run:
    """Simulate the phases with a rule."""
    clock = ManualClock(1_000_000)
    limiter = TokenBucketLimiter(_LIMIT, MemoryStore(clock), "upstream")
    degradation = Degradation(limiter, rule=rule)
    upstream, run = Upstream(), Run()
    in_flight: deque[list[bool]] = deque([[] for _ in range(ROUND_TRIP_TICKS)])
    last_second: deque[int] = deque([0] * (1_000_000 // TICK_US), maxlen=1_000_000 // TICK_US)
    for quota in (quota for seconds, quota in PHASES for _ in range(seconds)):
        run.accepted.append(0)
        run.refused.append(0)
        for _ in range(1_000_000 // TICK_US):
            now_us = clock.now_ns() // 1000
            # Once it refuses a call, it refuses all later calls at the same moment.
            granted = next((number for number in range(WORKERS) if not limiter.sync.acquire()), WORKERS)
            in_flight.append([upstream.accepts(now_us, quota) for _ in range(granted)])
            responses = in_flight.popleft()
            last_second.append(responses.count(True))
            run.accepted[-1] += responses.count(True)
            run.refused[-1] += responses.count(False)
            for is_accepted in responses:
                if is_accepted:
                    degradation.sync.record_success()
                elif report is not None:
                    report(degradation, sum(last_second))
            clock.advance(TICK_US / 1e6)
        run.limit.append(degradation.current)
    return run


@contextmanager
def silent_log() -> Iterator[None]:
    """Silence the log: each refusal would be a line."""
    logger = logging.getLogger("comporta")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def all_runs() -> dict[str, Run]:
    """Simulate the phases with each rule."""
    with silent_log():
        return {name: simulate(*rule) for name, rule in RULES.items()}


def run(_: Effort) -> Section:
    """Show accepted and refused calls of each phase."""
    section = Section(
        "Degradation",
        f"A deterministic simulation: {WORKERS} workers share one limit of 100/s, and the upstream's quota "
        "falls from 100/s to 30/s and rises again; responses take 100 ms.",
    )
    head = [""]
    for seconds, quota in PHASES:
        head += [f"{seconds} s at {quota}/s: accepted", "refused"]
    rows, runs = [], all_runs()
    for name, result in runs.items():
        counts = [count for phase in range(len(PHASES)) for count in result.sums(phase)]
        rows.append([name, *map(str, counts), f"{result.used():.0%}"])
    section.tables.append(Table("Accepted and refused", [*head, "used since it fell"], rows))
    cubic, accepted = runs[CUBIC], runs[ACCEPTED]
    promise = f"{CUBIC}: at least {USED_MIN:.0%} of a moving quota used"
    section.goals.append(Goal(promise, f"{cubic.used():.1%}", cubic.used() >= USED_MIN))
    refused, most = sum(cubic.refused), sum(accepted.refused)
    section.goals.append(
        Goal(f"{CUBIC}: at most the refusals of {ACCEPTED}", f"{refused} of {most}", refused <= most)
    )
    return section
