"""What one can ask of a limit, each verb once, as a flow.

``limiter.py`` drives these for coroutines and for threads; neither face has logic of its own beyond the
direct path of a single decision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

from comporta.clock import to_seconds, to_us
from comporta.flow import Flow
from comporta.limits.asking import Ask, InForce
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.decision import Decision, Stats
from comporta.limits.key import LimitKey, state_key
from comporta.limits.operation import CHANGES, SPACE, Answer, LimitOperation, Question
from comporta.limits.waiting import Lines, in_line
from comporta.stores.base import Bound, Stepper, Store
from comporta.stores.effects import Apply, Sleep
from comporta.stores.failover import fallback_of
from comporta.stores.records import Delete, Write

if TYPE_CHECKING:
    from comporta.limits.leased import LeasedBound
    from comporta.limits.rule import Rule

Key = LimitKey | str | None

TIMEOUT_MAX = 366 * 86_400.0


class Verbs:
    """The verbs of one limit on one store."""

    __slots__ = ("bound", "config", "known", "leases", "lines", "name", "store")

    def __init__(
        self,
        config: LimitConfig,
        store: Store,
        name: str,
        bound: Bound,
        *,
        known: Callable[[], Rule],
        leases: LeasedBound | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.name = name
        self.bound = bound
        self.known = known
        self.leases = leases
        self.lines = Lines()

    def acquire(self, key: Key, cost: int, timeout: float | None) -> Flow[bool]:
        """Take ``cost``, waiting up to ``timeout`` seconds."""
        text = state_key(key)
        check_cost(cost)
        check_timeout(timeout)
        yield from self._fits(text, cost)
        if timeout == 0:
            if text in self.lines.by_key:
                return False  # those who wait were here before
            return (yield from self._take(key, cost)) == 0
        if self.config.strategy is LimitStrategy.LEAKY_BUCKET:
            return (yield from self._turn(text, cost, timeout))
        ask = partial(self._take, key, cost)
        return (yield from in_line(self.lines, ask, self.store.clock, text, timeout))

    def decide(self, key: Key, cost: int) -> Flow[Decision]:
        """Take ``cost`` if it is there, and tell how the key stands then."""
        text = state_key(key)
        check_cost(cost)
        yield from self._fits(text, cost)
        answer = yield from self._ask(text, cost)
        return Decision.of(answer, allowed=answer.wait_us == 0)

    def peek(self, key: Key) -> Flow[Decision]:
        """Tell how a key stands."""
        answer = yield from self._ask(state_key(key), 0)
        return Decision.of(answer, allowed=answer.remaining > 0)

    def release(self, key: Key, cost: int) -> Flow[None]:
        """Give back ``cost``."""
        text = state_key(key)
        check_cost(cost)
        yield from self._ask(text, -cost)
        if self.leases is not None:
            self.leases.ask_again(text)
        self.lines.call_first(text)

    def reset(self, key: Key) -> Flow[None]:
        """Forget all about a key."""
        text = state_key(key)
        rule: Stepper = yield InForce(self.bound)
        yield Apply(self.store, Delete(f"{SPACE}:{self.name}", text, kind=rule))
        if self.leases is not None:
            self.leases.drop(text)
        self.lines.call_first(text)

    def stats(self, key: Key) -> Flow[Stats]:
        """Tell the figures of a health page."""
        answer = yield from self._ask(state_key(key), 0)
        return Stats(answer.remaining, answer.recent, answer.capacity, fallback_of(self.store))

    def change(self, limit: LimitConfig | str | None) -> Flow[None]:
        """Change the limit for all who share it; ``None`` revokes the change."""
        yield from self._changing(limit)
        if self.leases is not None:
            self.leases.ask_all_again()

    def _changing(self, limit: LimitConfig | str | None) -> Flow[None]:
        if limit is None:
            yield Apply(self.store, Delete(CHANGES, self.name, followed=True))
            return
        config = replace(LimitConfig.of(limit, self.config.strategy), lease=self.config.lease)
        value = config.rule().numbers.written(str(config))
        yield Apply(self.store, Write(CHANGES, self.name, value, None, followed=True))

    def question(self, text: str, amount: int) -> Flow[Question]:
        """Return this limit as a part of an operation."""
        rule: Rule = yield InForce(self.bound)
        return Question(rule, self.name, text, amount, self.config.fallback, self.known)

    def _take(self, key: Key, cost: int) -> Flow[int]:
        wait_us: int = yield Ask(self.bound, key, cost)
        return wait_us

    def _ask(self, text: str, amount: int, patience_us: int = 0) -> Flow[Answer]:
        question = yield from self.question(text, amount)
        operation = LimitOperation([question], patience_us)
        answers: list[Answer] = yield Apply(self.store, operation)
        return answers[0]

    def _turn(self, text: str, cost: int, timeout: float | None) -> Flow[bool]:
        """Take the next turn of a queue and wait for it; once taken it is spent, used or not."""
        patience_us = to_us(TIMEOUT_MAX if timeout is None else timeout)
        answer = yield from self._ask(text, cost, patience_us)
        if answer.wait_us > patience_us:
            return False
        if answer.wait_us:
            yield Sleep(self.store.clock, to_seconds(answer.wait_us))
        return True

    def _fits(self, text: str, cost: int) -> Flow[None]:
        """Refuse a cost that could never be granted; the limit in force may be above the configured."""
        if cost > self.config.capacity:
            answer = yield from self._ask(text, 0)
            if cost > answer.capacity and fallback_of(self.store) is None:  # a share's own is no measure
                raise ValueError(f"cost must be at most the capacity, {answer.capacity}, got {cost}")


def check_cost(cost: int) -> None:
    """Raise for what no request can cost."""
    if isinstance(cost, bool) or not isinstance(cost, int):
        raise TypeError(f"cost must be an int, got {cost!r:.50}")
    if cost < 1:
        raise ValueError(f"cost must be at least 1, got {cost}")


def check_timeout(timeout: float | None) -> None:
    """Raise for what nobody can wait."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be a number of seconds or None, got {timeout!r:.50}")
    if not (isfinite(timeout) and 0 <= timeout <= TIMEOUT_MAX):
        raise ValueError(f"timeout must be 0 to {TIMEOUT_MAX:g} seconds, or None, got {timeout}")
