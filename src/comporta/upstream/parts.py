"""What an upstream is made of, and what it counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from comporta.clock import Clock
from comporta.limits.remote import RemoteBound
from comporta.metrics import current_metrics
from comporta.stores.failover import FailoverStore
from comporta.upstream.report import CallReport
from comporta.upstream.verdict import Judge

if TYPE_CHECKING:
    from comporta.breaker.breaker import CircuitBreaker
    from comporta.limits.degradation import Degradation
    from comporta.limits.limiter import BaseLimiter
    from comporta.limits.permits import ConcurrencyLimit
    from comporta.retry.budget import RetryBudget
    from comporta.retry.retry import Retry


_SECOND_NS = 1_000_000_000


class Accepted:
    """How many calls of this worker the upstream accepted, in this second and in the one before."""

    __slots__ = ("_before", "_count", "_second")

    def __init__(self) -> None:
        self._second = self._count = self._before = 0

    def add(self, now_ns: int) -> None:
        """Count one."""
        self._turn(now_ns // _SECOND_NS)
        self._count += 1

    def rate(self, now_ns: int) -> float:
        """Return the calls per second over the last second, which began in the middle of one of ours."""
        self._turn(now_ns // _SECOND_NS)
        return self._count + self._before * (1 - now_ns % _SECOND_NS / _SECOND_NS)

    def _turn(self, second: int) -> None:
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0


class Pause:
    """Until when an upstream wants no calls, as far as this worker was told itself.

    ``doubtful``: the shared state may not know of it.
    """

    __slots__ = ("_until_ns", "doubtful")

    def __init__(self) -> None:
        self._until_ns = 0
        self.doubtful = False

    @property
    def told(self) -> bool:
        """Whether there is one that may not be over yet."""
        return self._until_ns > 0

    def until(self, clock: Clock, seconds: float) -> None:
        """Remember a pause of so many seconds from now, unless there is a longer one."""
        self._until_ns = max(self._until_ns, clock.now_ns() + round(seconds * 1e9))

    def left(self, clock: Clock) -> float:
        """Return the seconds until its end, and forget it then."""
        left_ns = self._until_ns - clock.now_ns() if self._until_ns else 0
        if left_ns <= 0:
            self._until_ns = 0
            return 0.0
        return left_ns / 1e9


@dataclass(frozen=True, slots=True)
class Parts:
    """The policies of one upstream; what is ``None`` is not used.

    ``max_wait`` and ``pause_max`` are seconds. ``per_attempt``: every attempt counts in the breaker, not only
    the last of a series. ``take_now`` takes from a limit on this machine; ``waiting`` is who stands in line.
    """

    name: str
    clock: Clock
    limiter: BaseLimiter
    judge: Judge
    max_wait: float
    pause_max: float
    breaker: CircuitBreaker | None
    retry: Retry | None
    budget: RetryBudget | None
    permits: ConcurrencyLimit | None
    degradation: Degradation | None
    per_attempt: bool
    max_wait_ns: int = field(init=False)
    take_now: Callable[[Any, int], int] | None = field(init=False)
    waiting: Mapping[str, Any] = field(init=False)
    pause: Pause = field(default_factory=Pause)
    accepted: Accepted = field(default_factory=Accepted)

    def __post_init__(self) -> None:
        """Have at hand what every call needs."""
        bound = self.limiter.verbs.bound
        object.__setattr__(self, "max_wait_ns", round(self.max_wait * 1e9))
        object.__setattr__(self, "take_now", None if isinstance(bound, RemoteBound) else bound.attempt)
        object.__setattr__(self, "waiting", self.limiter.verbs.lines.by_key)

    @property
    def accepted_rate(self) -> float | None:
        """What the whole fleet gets through in a second, by this worker's own; where that is asked for."""
        if self.degradation is None or self.degradation.rule != "accepted":
            return None
        workers = self.limiter.store.workers if isinstance(self.limiter.store, FailoverStore) else 1
        return workers * self.accepted.rate(self.clock.now_ns())

    def count(self, report: CallReport) -> None:
        """Add a call that has ended to the figures."""
        sink = current_metrics()
        if sink is None:
            return
        with suppress(Exception):  # a sink that fails must not stop a call
            sink.counter("upstream_calls", 1, upstream=self.name, outcome=report.outcome)
            sink.counter("upstream_attempts", report.attempts, upstream=self.name)
            sink.histogram("upstream_wait_seconds", report.waited, upstream=self.name)
            sink.histogram("upstream_call_seconds", report.took, upstream=self.name)
