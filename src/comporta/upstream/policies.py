"""The policies of one upstream, and the state that its calls share in this process.

This module holds them and records metrics; ``flows`` defines the order in which a call goes through them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from comporta.clock import Clock
from comporta.errors import CircuitOpenError, RefusedError
from comporta.limits.concurrency.call_limits import CallLimits
from comporta.limits.priority import PRIORITIES
from comporta.metrics import count, current_metrics, observe
from comporta.outcome import PLAIN_TYPES, Classifier, classify
from comporta.refusals import RefusalHandler
from comporta.retry.attempts import NO_HOOKS, AttemptHooks
from comporta.upstream.fast_path import FastPath
from comporta.upstream.limit_tokens import SeveralLimits, SingleLimit, Tokens
from comporta.upstream.recent_failures import RecentFailures
from comporta.upstream.report import CallReport

if TYPE_CHECKING:
    from comporta.breaker.guard import CallGuard
    from comporta.limits.concurrency.limit import ConcurrencyLimit
    from comporta.limits.group import LimitGroup
    from comporta.limits.limiter import BaseLimiter
    from comporta.limits.overrides.degradation import Degradation
    from comporta.retry.budget import RetryBudget
    from comporta.retry.retry import Retry


_SECOND_NS = 1_000_000_000


class AcceptedRate:
    """The rate at which the upstream accepts calls of this process, over the last second."""

    __slots__ = ("_count", "_previous_count", "_second")

    def __init__(self) -> None:
        self._second = self._count = self._previous_count = 0

    def add(self, now_ns: int) -> None:
        """Count an accepted call."""
        if now_ns // _SECOND_NS != self._second:
            self._advance(now_ns // _SECOND_NS)
        self._count += 1

    def rate(self, now_ns: int) -> float:
        """Estimate the accepted calls of the last second from the counts of this second and of the last."""
        self._advance(now_ns // _SECOND_NS)
        return self._count + self._previous_count * (1 - now_ns % _SECOND_NS / _SECOND_NS)

    def _advance(self, second: int) -> None:
        if second != self._second:
            self._previous_count = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0


class UpstreamPause:
    """The pause that the upstream asked this worker for.

    ``is_unconfirmed``: the store may not have the pause.
    """

    __slots__ = ("is_unconfirmed", "until_ns")

    def __init__(self) -> None:
        self.until_ns = 0
        self.is_unconfirmed = False

    @property
    def is_set(self) -> bool:
        """Whether there is a pause that may not have ended yet."""
        return self.until_ns > 0

    def extend(self, clock: Clock, seconds: float) -> None:
        """Set a pause that ends ``seconds`` from now, unless the current one ends later."""
        self.until_ns = max(self.until_ns, clock.now_ns() + round(seconds * 1e9))

    def remaining(self, clock: Clock) -> float:
        """Return the seconds until the pause ends; 0 clears it."""
        remaining_ns = self.until_ns - clock.now_ns() if self.until_ns else 0
        if remaining_ns <= 0:
            self.until_ns = 0
            return 0.0
        return remaining_ns / 1e9


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of one upstream; those that are ``None`` are not used.

    ``max_wait`` and ``pause_max`` are seconds. ``counts_attempts``: every attempt counts in the breaker, not
    only the last one of a call. ``try_acquire`` takes a token without waiting, where this process decides;
    ``waiters`` are the callers that wait for the limit, by key. ``call_limits`` takes a permit and a token
    together, where calls need a permit. Results of ``plain_types`` are successes and are not classified.
    ``group`` holds all limits, if there are several. Then ``limiter`` is the first of them, on which a pause
    and degradation act, and calls take from the group, without a fast path.
    """

    name: str
    clock: Clock
    limiter: BaseLimiter
    classify: Classifier
    max_wait: float
    pause_max: float
    breaker: CallGuard | None
    retry: Retry | None
    budget: RetryBudget | None
    permits: ConcurrencyLimit | None
    degradation: Degradation | None
    counts_attempts: bool
    hooks: AttemptHooks = NO_HOOKS
    on_refusal: RefusalHandler | None = None
    group: LimitGroup | None = None
    tokens: Tokens = field(init=False)
    has_hooks: bool = field(init=False)
    plain_types: frozenset[type[Any]] = field(init=False)
    fast_path: FastPath = field(init=False)
    max_wait_ns: int = field(init=False)
    try_acquire: Callable[[Any, int], int] | None = field(init=False)
    waiters: Mapping[str, Any] = field(init=False)
    call_limits: CallLimits | None = field(init=False)
    pause: UpstreamPause = field(default_factory=UpstreamPause)
    accepted: AcceptedRate = field(default_factory=AcceptedRate)
    failures: RecentFailures = field(default_factory=RecentFailures)

    def waiting_by_class(self) -> dict[str, int]:
        """Return how many callers of this process wait for a token or a permit, by their class."""
        queues = [(self.limiter if self.group is None else self.group)._flows.wait_queue]
        if self.permits is not None:
            queues.append(self.permits._wait_queue)
        counts = [queue.count_by_rank() for queue in queues]
        totals = {name: sum(count.get(rank, 0) for count in counts) for rank, name in enumerate(PRIORITIES)}
        return {name: total for name, total in totals.items() if total}

    def __post_init__(self) -> None:
        """Compute what every call needs."""
        bound = self.limiter._flows.bound
        has_hooks = not self.hooks.is_empty
        object.__setattr__(self, "has_hooks", has_hooks)
        plain_types = PLAIN_TYPES if self.classify is classify else frozenset[type[Any]]()
        object.__setattr__(self, "plain_types", plain_types)
        object.__setattr__(self, "max_wait_ns", round(self.max_wait * 1e9))
        decides_here = bound.decides_in_process and self.group is None
        object.__setattr__(self, "try_acquire", bound.try_acquire if decides_here else None)
        object.__setattr__(self, "waiters", self.limiter._flows.wait_queue.waiters_by_key)
        call_limits = None
        if self.permits is not None and self.group is None:
            call_limits = CallLimits(self.permits, self.limiter)
        object.__setattr__(self, "call_limits", call_limits)
        tokens = SingleLimit(self.limiter) if self.group is None else SeveralLimits(self.group)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "fast_path", FastPath.for_policies(self))

    def become(self, other: Policies, limiter: BaseLimiter) -> None:
        """Take over other policies in place, because guarded functions and transports hold this object.

        Calls in progress keep the permits and admissions that they have. A pause stays in force.
        """
        kept = {"limiter": limiter, "pause": self.pause, "accepted": self.accepted, "failures": self.failures}
        for each in fields(self):
            object.__setattr__(self, each.name, kept.get(each.name, getattr(other, each.name)))
        self.__post_init__()

    @property
    def accepted_rate(self) -> float | None:
        """The rate at which the upstream accepts calls of all workers, estimated from this worker's.

        ``None`` unless the degradation rule uses it.
        """
        if self.degradation is None or self.degradation.rule != "accepted":
            return None
        worker_count = self.limiter.store.worker_count or 1
        return worker_count * self.accepted.rate(self.clock.now_ns())

    def refusal_handler(self, error: BaseException) -> RefusalHandler | None:
        """Return what answers a call that ends with ``error``: the upstream's handler, or its breaker's."""
        if not isinstance(error, RefusedError):
            return None
        if self.on_refusal is None and self.breaker is not None and isinstance(error, CircuitOpenError):
            return self.breaker.on_refusal
        return self.on_refusal

    def record(self, report: CallReport) -> None:
        """Record the metrics of a call that has ended."""
        if current_metrics() is None:
            return
        count("upstream_calls", 1, upstream=self.name, outcome=report.outcome)
        count("upstream_attempts", report.attempts, upstream=self.name)
        observe("upstream_wait_seconds", report.waited, upstream=self.name)
        observe("upstream_call_seconds", report.took, upstream=self.name)
        if report.attempts:
            latency = max(0.0, report.took - report.waited) / report.attempts
            observe("upstream_latency_seconds", latency, upstream=self.name)
