"""The bound on the retries of all workers: a share of the calls of the last minute, and a minimum.

When an upstream is down every call fails. If each is made four times, the upstream gets four times its load
at the worst moment. Retries are therefore bounded by the calls of all workers in the last minute. Each
process counts its calls and reports them to the store every 10 s (every slice, if the window is short) and
with each retry that it requests; a retry is granted in one atomic step.

The window has six slices and moves by a whole slice at a time. If the count is uncertain it errs on the low
side, which makes the budget smaller: calls that cannot be reported in time are dropped, not reported late.

``budget.lua`` is the same algorithm for a server. This module neither knows why a call failed nor retries it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from comporta import events, fork_safety, metrics
from comporta.clock import MONOTONIC, to_us
from comporta.errors import StateError
from comporta.flow import Flow
from comporta.names import validate_name
from comporta.stores.base import Operation, Script, State, StateKey, StateType, Store
from comporta.stores.effects import Apply
from comporta.stores.heartbeat_subscriber import HeartbeatSubscriber
from comporta.stores.lua import lua, script_error
from comporta.stores.name_claims import NameClaims
from comporta.stores.outage_info import Outage
from comporta.validators import require_integer, require_number

SPACE = "retry_budget"
SLICES = 6
WINDOW_MAX = 300.0
LEAST_MAX = 1_000_000
CALLS_MAX = 1_000_000_000
"""The largest number of calls in one report; calls above it are not counted."""

_MILLIONTHS = 1_000_000
_REPORT_EVERY_NS_MIN, _REPORT_EVERY_NS_MAX = 1_000_000_000, 10_000_000_000
_EVENT_EVERY_NS = 60_000_000_000
_NO_SLICE = (-1, 0, 0)
_CLAIMS = NameClaims()

UNNAMED = "unnamed"
"""The name of a budget that belongs to one ``Retry`` object."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How many retries a budget grants: a share of the calls, and a minimum."""

    ratio: float = 0.2
    """Retries per call of the last ``window`` seconds."""

    least: int = 10
    """Retries per ``window`` that are granted however few calls there are."""

    window: float = 60.0
    """The period, in seconds, over which calls and retries are counted."""

    def __post_init__(self) -> None:
        require_number("ratio", self.ratio, 0, 100)
        require_integer("least", self.least, 0, LEAST_MAX)
        require_number("window", self.window, 1, WINDOW_MAX)

    @property
    def _slice_us(self) -> int:
        """The length of a slice of the window."""
        return to_us(self.window) // SLICES


class BudgetUsage(NamedTuple):
    """Whether a retry was granted, and the number of calls and retries in the window."""

    granted: bool
    calls: int
    retries: int


class _BudgetStateType(StateType):
    """State: the length of a slice in µs, then number, calls and retries of each slice."""

    name = "retry_budget"
    codec = Struct("<19q")

    @staticmethod
    def expires_us(state: State) -> int:
        """Return the time at which the latest slice leaves the window."""
        latest: int = max(state[1::3])
        return (latest + SLICES) * int(state[0])


BUDGET = _BudgetStateType()


class BudgetOperation(Operation[BudgetUsage]):
    """Add calls to a budget, and ask for a retry if ``retry`` is true."""

    __slots__ = ("_budget", "_calls", "_least", "_name", "_retry")

    script = Script("retry_budget", partial(lua, "retry/budget"), batchable=True)
    reply_size = 3

    def __init__(
        self, name: str, budget: Budget, calls: int, *, retry: bool, least: int | None = None
    ) -> None:
        self._name = name
        self._budget = budget
        self._calls = min(calls, CALLS_MAX)
        self._retry = retry
        self._least = budget.least if least is None else least

    @property
    def state_keys(self) -> list[StateKey]:
        """The key of the budget."""
        return [StateKey(SPACE, self._name, BUDGET)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], BudgetUsage]:
        """Add the calls, and grant the retry if the window has fewer retries than allowed."""
        slice_us = self._budget._slice_us
        number = now_us // slice_us
        slices = _slices(states[0], slice_us)
        window = [each for each in slices if number - SLICES < each[0] <= number]
        calls, retries = self._calls + sum(each[1] for each in window), sum(each[2] for each in window)
        allowed = max(self._least, calls * self._millionths // _MILLIONTHS)
        granted = int(self._retry and retries < allowed)
        usage = BudgetUsage(bool(granted), calls, retries + granted)
        if not self._calls + granted:
            return [None], usage
        at = number % SLICES
        current = slices[at] if slices[at][0] == number else (number, 0, 0)
        slices[at] = (number, current[1] + self._calls, current[2] + granted)
        return [(slice_us, *(value for each in slices for value in each))], usage

    @property
    def _millionths(self) -> int:
        return round(self._budget.ratio * _MILLIONTHS)

    def script_args(self) -> list[int | str | bytes]:
        """Return the calls, whether a retry is wanted, the minimum, the ratio and the length of a slice."""
        return [self._calls, int(self._retry), self._least, self._millionths, self._budget._slice_us]

    def fallback(self, outage: Outage) -> BudgetOperation:
        """Return the operation on this worker's own budget, with its own calls and its share of the minimum.

        A worker without room for another key grants no retries.
        """
        if outage.full:
            return BudgetOperation(self._name, self._budget, 0, retry=False)
        least = -(-self._budget.least // outage.worker_count)
        return BudgetOperation(self._name, self._budget, self._calls, retry=self._retry, least=least)

    def parse(self, raw: Sequence[Any]) -> BudgetUsage:
        """Parse three numbers; bytes as the first value are the error of the key."""
        granted, calls, retries = raw
        if not isinstance(granted, int):
            [key] = self.script_keys()
            raise script_error(granted, key)
        return BudgetUsage(granted == 1, int(calls), int(retries))


def _slices(state: State | None, slice_us: int) -> list[tuple[int, ...]]:
    """Return the slices of a state; a state with another window counts as empty."""
    if state is None or state[0] != slice_us:
        return [_NO_SLICE] * SLICES
    return [state[at : at + 3] for at in range(1, 1 + 3 * SLICES, 3)]


class CallReporter(HeartbeatSubscriber):
    """Counts the calls of this process and reports them to the budget, from the heartbeat's thread.

    Counting takes no lock: several threads that count at the same moment may lose a few calls.
    """

    __slots__ = (
        *("__weakref__", "_budget", "_name", "_now_ns", "_report_every_ns", "_reported_turn", "_slice_ns"),
        *("_stale_ns", "_store", "calls"),
    )

    def __init__(self, name: str, store: Store, budget: Budget) -> None:
        self.calls = 0
        self._name = name
        self._store = store
        self._budget = budget
        self._now_ns = store.clock.now_ns
        self._slice_ns = budget._slice_us * 1000
        self._stale_ns = 0
        self._report_every_ns = min(_REPORT_EVERY_NS_MAX, max(_REPORT_EVERY_NS_MIN, self._slice_ns))
        self._reported_turn = -1
        fork_safety.register(self)
        store.subscribe(self)

    def count_call(self) -> None:
        """Count a call, whatever its result."""
        if self._now_ns() >= self._stale_ns:
            self._start_slice()
        self.calls += 1

    def take_operation(self, *, retry: bool) -> BudgetOperation:
        """Return the operation that reports the calls counted so far, and asks for a retry if wanted."""
        return BudgetOperation(self._name, self._budget, self._take_calls(), retry=retry)

    def heartbeat_operation(self) -> BudgetOperation | None:
        """Return the report of the calls counted so far if it is due; ``None`` if there are none."""
        if not self.calls:
            return None
        # the same turn for all budgets, so that they are sent together
        turn = self._now_ns() // self._report_every_ns
        if turn == self._reported_turn:
            return None
        self._reported_turn = turn
        calls = self._take_calls()
        return BudgetOperation(self._name, self._budget, calls, retry=False) if calls else None

    def on_heartbeat_reply(self, reply: object) -> None:
        """Ignore the reply: the usage matters only when a retry is wanted."""

    def after_fork(self) -> None:
        """Drop the counted calls, which the parent reports, and start this process's own heartbeat soon."""
        self.calls = self._stale_ns = 0

    def _take_calls(self) -> int:
        """Return the calls not reported yet and reset the count; calls older than the window are dropped."""
        calls, self.calls = self.calls, 0
        now_ns, stale_ns = self._now_ns(), self._stale_ns
        self._stale_ns = now_ns + self._slice_ns
        return calls if now_ns < stale_ns + (SLICES - 1) * self._slice_ns else 0

    def _start_slice(self) -> None:
        """Start counting for the next slice; if a report costs no round trip, report the last slice."""
        calls, self.calls = self.calls, 0
        if self._store.has_heartbeat:
            # if all calls succeed, no operation would start it
            self._store.start_heartbeat()
        elif calls and not self._store.shared:
            self._store.apply(BudgetOperation(self._name, self._budget, calls, retry=False))
        self._stale_ns = self._now_ns() + self._slice_ns


class RetryBudget:
    """A budget, shared by all workers that use the same name and store. Pass it to ``Retry(budget=...)``."""

    name: str
    """The name that workers share."""

    store: Store
    """The store that holds the counts."""

    budget: Budget
    """How many retries it grants."""

    def __init__(self, name: str, store: Store, budget: Budget | None = None) -> None:
        self.name = validate_name(name)
        self.store = store
        self.budget = budget or Budget()
        self._claim = None if name == UNNAMED else _CLAIMS.claim(store, self.name, self.budget)
        self._reporter = CallReporter(name, store, self.budget)
        self._count_call = self._reporter.count_call
        self._published_ns = -_EVENT_EVERY_NS

    def _withdraw_flow(self) -> Flow[bool]:
        """Ask for a retry, and report the calls counted so far; false if the budget is used up.

        If the store raises an error, no retry is granted: the caller raises its own error.
        """
        try:
            usage: BudgetUsage = yield Apply(self.store, self._reporter.take_operation(retry=True))
        except StateError as error:
            self._publish_event("retry_budget_unusable", f"no retries: {error}", "error")
            return False
        if not usage.granted:
            self._report_exhausted(usage)
        return usage.granted

    def _usage_flow(self) -> Flow[BudgetUsage]:
        """Return the calls and retries in the window, for a health page."""
        usage: BudgetUsage = yield Apply(self.store, self._reporter.take_operation(retry=False))
        return usage

    def _report_exhausted(self, usage: BudgetUsage) -> None:
        metrics.count("retry_budget_exhausted", budget=self.name)
        text = f"{usage.retries} for {usage.calls} calls in the last {self.budget.window:g} s"
        self._publish_event("retry_budget_exhausted", f"no more retries: {text}", "warning")

    def _publish_event(self, kind: str, text: str, severity: str) -> None:
        """Publish an event, at most once a minute."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._published_ns >= _EVENT_EVERY_NS:
            self._published_ns = now_ns
            events.publish(kind, self.name, text, severity)
