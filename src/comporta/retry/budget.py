"""What the fleet may spend on retries: so many for each hundred calls, and a few in any case.

When an upstream is down every call fails, and if each is tried four times the upstream gets four times the
load just when it can bear it least. So retries are bounded by the calls of the last minute, those of all
workers together. Calls are counted in this process and told to the others now and then; whoever wants to
retry asks, in one atomic step.

Time is cut into six slices of a window; the one that is under way counts as a whole, so the window slides in
steps. Too small a budget is the safe side: what cannot be told in time is forgotten, not told late.

Twin: ``budget.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from comporta import events, forks
from comporta.clock import MONOTONIC, to_us
from comporta.errors import StateError
from comporta.flow import Flow
from comporta.metrics import current_metrics
from comporta.names import checked_name
from comporta.retry.backoff import check_range
from comporta.stores.base import Outage, Part, Script, State, Store, key_text
from comporta.stores.effects import Apply
from comporta.stores.failover import FailoverStore
from comporta.stores.lua import lua
from comporta.stores.memory import MemoryStore
from comporta.stores.naming import named

SPACE = "retry_budget"
SLICES = 6
WINDOW_MAX = 300.0
LEAST_MAX = 1_000_000
CALLS_MAX = 1_000_000_000
"""The most calls that are told at once; more are not counted."""

_MILLIONTHS = 1_000_000
_TELL_EVERY_NS = 1_000_000_000
_SAY_EVERY_NS = 60_000_000_000
_NO_SLICE = (-1, 0, 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """``ratio`` retries for each call of the last ``window`` seconds, and ``least`` in any case."""

    ratio: float = 0.2
    least: int = 10
    window: float = 60.0

    def __post_init__(self) -> None:
        check_range("ratio", self.ratio, 0, 100)
        if isinstance(self.least, bool) or not isinstance(self.least, int):
            raise TypeError(f"least must be an int, got {self.least!r:.50}")
        check_range("least", self.least, 0, LEAST_MAX)
        check_range("window", self.window, 1, WINDOW_MAX)

    @property
    def slice_us(self) -> int:
        """How long a slice is."""
        return to_us(self.window) // SLICES


class Spent(NamedTuple):
    """Whether a retry was granted, and how many calls and retries the window has seen."""

    granted: bool
    calls: int
    retries: int


class _BudgetKind:
    """State: the microseconds of a slice, then number, calls and retries of each slice."""

    codec = Struct("<19q")

    @staticmethod
    def expires_us(state: State) -> int:
        """When the latest slice has left the window."""
        latest: int = max(state[1::3])
        return (latest + SLICES) * int(state[0])


BUDGET = _BudgetKind()


class Spend:
    """Add calls to a budget, and ask it for a retry if one is wanted."""

    __slots__ = ("_budget", "_calls", "_least", "_name", "_retry")

    script = Script("retry_budget", partial(lua, "retry", "budget"), joins=True)
    followed = False
    fields = 3

    def __init__(
        self, name: str, budget: Budget, calls: int, *, retry: bool, least: int | None = None
    ) -> None:
        self._name = name
        self._budget = budget
        self._calls = min(calls, CALLS_MAX)
        self._retry = retry
        self._least = budget.least if least is None else least

    @property
    def parts(self) -> list[Part]:
        """The one budget."""
        return [Part(SPACE, self._name, BUDGET)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Spent]:
        """Count, and grant a retry as long as there are few beside the calls."""
        slice_us = self._budget.slice_us
        number = now_us // slice_us
        slices = _slices(states[0], slice_us)
        window = [one for one in slices if number - SLICES < one[0] <= number]
        calls, retries = self._calls + sum(one[1] for one in window), sum(one[2] for one in window)
        allowed = max(self._least, calls * self._millionths // _MILLIONTHS)
        granted = int(self._retry and retries < allowed)
        spent = Spent(bool(granted), calls, retries + granted)
        if not self._calls + granted:
            return [None], spent
        at = number % SLICES
        own = slices[at] if slices[at][0] == number else (number, 0, 0)
        slices[at] = (number, own[1] + self._calls, own[2] + granted)
        return [(slice_us, *(value for one in slices for value in one))], spent

    @property
    def _millionths(self) -> int:
        return round(self._budget.ratio * _MILLIONTHS)

    def key_names(self) -> tuple[str]:
        """The one budget."""
        return (key_text(SPACE, self._name),)

    def arguments(self) -> list[int | str | bytes]:
        """Five numbers."""
        return [self._calls, int(self._retry), self._least, self._millionths, self._budget.slice_us]

    @staticmethod
    def undo(reply: object) -> None:
        """A retry granted to a caller that is gone is spent: too small a budget is the safe side."""

    def alone(self, outage: Outage) -> Spend:
        """Go by this worker's own calls, and its share of the least there is; a full one grants nothing."""
        if outage.full:
            return Spend(self._name, self._budget, 0, retry=False)
        least = -(-self._budget.least // outage.workers)
        return Spend(self._name, self._budget, self._calls, retry=self._retry, least=least)

    def parse(self, raw: Sequence[Any]) -> Spent:
        """Read three numbers; an error in place of the first names the key it came from."""
        granted, calls, retries = raw
        if not isinstance(granted, int):
            [key] = self.key_names()
            text = granted.decode("utf-8", "replace")
            raise named(RuntimeError(text), repr(key), repr(key))
        return Spent(granted == 1, int(calls), int(retries))


def _slices(state: State | None, slice_us: int) -> list[tuple[int, ...]]:
    """Return the slices; those of another window, as another program may have it, mean nothing here."""
    if state is None or state[0] != slice_us:
        return [_NO_SLICE] * SLICES
    return [state[at : at + 3] for at in range(1, 1 + 3 * SLICES, 3)]


class RetryBudget:
    """A budget shared by whoever uses the same state and name.

    ``called()`` counts a call, without asking anybody; from several threads at once it may count a few too
    few. The keeper of a shared state tells the others once a second.
    """

    def __init__(self, name: str, store: Store, budget: Budget | None = None) -> None:
        self.name = checked_name(name)
        self.store = store
        self.budget = budget or Budget()
        self._calls = 0
        self._now_ns = store.clock.now_ns
        self._slice_ns = self.budget.slice_us * 1000
        self._stale_ns = 0
        self._told_ns = self._said_ns = -_SAY_EVERY_NS
        forks.register(self)
        if isinstance(store, FailoverStore):
            store.keeper.watch(self)

    def called(self) -> None:
        """Count a call, whatever becomes of it."""
        if self._now_ns() >= self._stale_ns:
            self._roll()
        self._calls += 1

    def withdrawing(self) -> Flow[bool]:
        """Ask for a retry, telling what was called since; false: there have been too many.

        A state that cannot be asked at all grants none: the caller has an error of its own to raise.
        """
        try:
            spent: Spent = yield Apply(self.store, Spend(self.name, self.budget, self._counted(), retry=True))
        except StateError as error:
            self._say("retry_budget_unusable", f"no retries: {error}", "error")
            return False
        if not spent.granted:
            self._exhausted(spent)
        return spent.granted

    def spending(self) -> Flow[Spent]:
        """Tell how the budget stands, for a page."""
        spent: Spent = yield Apply(self.store, Spend(self.name, self.budget, self._counted(), retry=False))
        return spent

    def due(self) -> Spend | None:
        """Return what the keeper tells the others; nothing if there is nothing, or not yet."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._told_ns < _TELL_EVERY_NS or not self._calls:
            return None
        self._told_ns = now_ns
        calls = self._counted()
        return Spend(self.name, self.budget, calls, retry=False) if calls else None

    def told(self, reply: object) -> None:
        """Nothing needs to be known of it until a retry is wanted."""

    def after_fork(self) -> None:
        """Leave what the parent counted to the parent, and have a keeper of its own."""
        self._calls = self._stale_ns = 0

    def _counted(self) -> int:
        """Return what was called and not told, unless that was a window ago, and count anew."""
        calls, self._calls = self._calls, 0
        now_ns, stale_ns = self._now_ns(), self._stale_ns
        self._stale_ns = now_ns + self._slice_ns
        return calls if now_ns < stale_ns + (SLICES - 1) * self._slice_ns else 0

    def _roll(self) -> None:
        """Begin the next stretch of counting; where it costs nothing to tell what was before, it is told."""
        calls, self._calls = self._calls, 0
        if isinstance(self.store, FailoverStore):
            self.store.keeper.start()  # a worker whose calls all succeed asks nothing that would start it
        elif calls and isinstance(self.store, MemoryStore):
            self.store.apply(Spend(self.name, self.budget, calls, retry=False))
        self._stale_ns = self._now_ns() + self._slice_ns

    def _exhausted(self, spent: Spent) -> None:
        sink = current_metrics()
        if sink is not None:
            with suppress(Exception):  # a sink that fails must not stop a decision
                sink.counter("retry_budget_exhausted", 1, budget=self.name)
        what = f"{spent.retries} for {spent.calls} calls in the last {self.budget.window:g} s"
        self._say("retry_budget_exhausted", f"no more retries: {what}", "warning")

    def _say(self, kind: str, text: str, severity: str) -> None:
        """Say it once a minute, however often it happens."""
        now_ns = MONOTONIC.now_ns()
        if now_ns - self._said_ns >= _SAY_EVERY_NS:
            self._said_ns = now_ns
            events.publish(kind, self.name, text, severity)
