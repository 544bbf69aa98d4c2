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

from comporta.chance import uniform
from comporta.clock import to_seconds, to_us
from comporta.flow import Flow
from comporta.limits.adjust import Adjusted, Pause, Resume, Revoke, SetByHand
from comporta.limits.asking import Ask, InForce
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.decision import Decision, Stats
from comporta.limits.in_force import PAUSE_US_MAX, Timed
from comporta.limits.key import LimitKey, state_key
from comporta.limits.operation import SPACE, Answer, LimitOperation, Question
from comporta.limits.remote import RemoteBound
from comporta.limits.telling import tell
from comporta.limits.waiting import ASK_AGAIN_US, SPREAD_US_MAX, Lines, in_line
from comporta.stores.base import Bound, Operation, Stepper, Store
from comporta.stores.effects import Apply, Sleep
from comporta.stores.failover import FailoverStore, fallback_of
from comporta.stores.records import NEVER_US, Delete

if TYPE_CHECKING:
    from comporta.limits.leased import LeasedBound
    from comporta.limits.rule import Numbers, Rule

Key = LimitKey | str | None

TIMEOUT_MAX = 366 * 86_400.0
PAUSE_MAX = to_seconds(PAUSE_US_MAX)

_TURN_NOT_LOOKED_AFTER_US = 50_000
"""A turn that comes sooner is taken without looking whether there has been a pause meanwhile."""


class Verbs:
    """The verbs of one limit on one store."""

    __slots__ = ("_remote", "bound", "config", "known", "leases", "lines", "name", "numbers", "store")

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
        self.numbers: Numbers = config.rule().numbers
        inner = bound if leases is None else leases.inner
        self._remote = inner if isinstance(inner, RemoteBound) else None

    def acquire(self, key: Key, cost: int, timeout: float | None) -> Flow[bool]:
        """Take ``cost``, waiting up to ``timeout`` seconds."""
        text = state_key(key)
        check_cost(cost)
        check_timeout(timeout)
        yield from self.fits(text, cost)
        if timeout == 0:
            if not self.lines.is_empty(text):
                return False  # those who wait were here before
            return (yield from self._take(key, cost)) == 0
        if self.config.strategy is LimitStrategy.LEAKY_BUCKET:
            return (yield from self._turn(text, cost, timeout))
        ask = partial(self._take, key, cost)
        return (yield from in_line(self.lines, ask, self.store.clock, text, timeout, spread=self.spread_us))

    def decide(self, key: Key, cost: int) -> Flow[Decision]:
        """Take ``cost`` if it is there, and tell how the key stands then."""
        text = state_key(key)
        check_cost(cost)
        yield from self.fits(text, cost)
        answer = yield from self._ask(text, cost)
        return Decision.of(answer, allowed=answer.wait_us == 0)

    def peek(self, key: Key) -> Flow[Decision]:
        """Tell how a key stands."""
        answer = yield from self._ask(state_key(key), 0)
        return Decision.of(answer, allowed=answer.remaining > 0 and not answer.paused_us)

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
        stands = (answer.remaining, answer.recent, answer.capacity, fallback_of(self.store))
        return Stats(*stands, to_seconds(answer.paused_us), answer.original)

    def change(self, limit: LimitConfig | str | None) -> Flow[None]:
        """Change the limit for all who share it; ``None`` revokes the change."""
        yield from self.adjusting(self._change(limit))
        if self.leases is not None:
            self.leases.ask_all_again()

    def pause(self, seconds: float) -> Flow[None]:
        """Let nothing pass for some time, whoever asks; 0 ends a pause."""
        check_pause(seconds)
        if not seconds:
            yield from self.resume()
            return
        adjusted = yield from self.adjusting(Pause(self.name, self.numbers, to_us(seconds)))
        if adjusted.changed:
            tell("paused", self.name, f"paused for {seconds:g} s")
            if self.leases is not None:
                yield from self.leases.recalling()

    def resume(self) -> Flow[None]:
        """End a pause."""
        adjusted = yield from self.adjusting(Resume(self.name, self.numbers))
        if adjusted.changed:
            tell("resumed", self.name, "resumed before its pause was over", "info")
        if self.leases is not None:
            self.leases.ask_all_again()
        self.lines.call_all_first()

    def adjusting(self, operation: Operation[Adjusted]) -> Flow[Adjusted]:
        """Change what is in force, and know it here from then on."""
        adjusted: Adjusted = yield Apply(self.store, operation)
        if self._remote is not None:
            self._remote.revise(adjusted.record)
        else:
            yield InForce(self.bound)
        return adjusted

    @property
    def is_remote(self) -> bool:
        """Whether the state goes by another clock than this process."""
        return self._remote is not None

    @property
    def blind(self) -> bool:
        """Whether what others change in the record is not heard of here without asking."""
        return self._remote is not None and not isinstance(self.store, FailoverStore)

    def paused_us(self) -> int:
        """Return how long the limit is paused, as far as this process knows without asking."""
        now_us, rule = self.store.clock.now_ns() // 1000, self.known()
        if not isinstance(rule, Timed):
            return 0
        return rule.at(now_us)[1] if self._remote is None else self._remote.paused_us(now_us)

    def spread_us(self) -> int:
        """Return by how much to come later than others who wait for the end of the same pause."""
        rule = self.known()
        if not (isinstance(rule, Timed) and self.paused_us()):
            return 0
        return round(uniform(0, min(rule.record.length_us // 10, SPREAD_US_MAX)))

    def _change(self, limit: LimitConfig | str | None) -> Operation[Adjusted]:
        if limit is None:
            return Revoke(self.name, self.numbers)
        config = replace(LimitConfig.of(limit, self.config.strategy), lease=self.config.lease)
        return SetByHand(self.name, config.rule().numbers, str(config))

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
        """Take the next turn of a queue and wait for it; once taken it is spent, used or not.

        If the limit was paused meanwhile, all turns given out would come at its end: they are taken anew.
        """
        clock = self.store.clock
        deadline_us = NEVER_US if timeout is None else clock.now_ns() // 1000 + to_us(timeout)
        while True:
            patience_us = max(0, min(deadline_us - clock.now_ns() // 1000, to_us(TIMEOUT_MAX)))
            answer = yield from self._ask(text, cost, patience_us)
            wait_us = answer.paused_us or answer.wait_us
            if wait_us > patience_us:
                return False
            if answer.paused_us:
                yield from self._rest_of_pause(answer.paused_us, patience_us)
                continue
            if wait_us:
                yield Sleep(clock, to_seconds(wait_us))
            if wait_us < _TURN_NOT_LOOKED_AFTER_US or not (yield from self._ask(text, 0)).paused_us:
                return True

    def _rest_of_pause(self, paused_us: int, patience_us: int) -> Flow[None]:
        rest_us = (
            min(paused_us + self.spread_us(), patience_us) if paused_us <= ASK_AGAIN_US else ASK_AGAIN_US
        )
        yield Sleep(self.store.clock, to_seconds(rest_us))

    def fits(self, text: str, cost: int) -> Flow[None]:
        """Refuse a cost that could never be granted; the limit in force may be above the configured."""
        if cost > self.config.capacity:
            answer = yield from self._ask(text, 0)
            most = max(answer.capacity, answer.original)
            if cost > most and fallback_of(self.store) is None:  # a share's own is no measure
                raise ValueError(f"cost must be at most the capacity, {most}, got {cost}")


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


def check_pause(seconds: float) -> None:
    """Raise for what is no pause."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"seconds must be a number, got {seconds!r:.50}")
    if not (isfinite(seconds) and 0 <= seconds <= PAUSE_MAX):
        raise ValueError(f"seconds must be 0 to {PAUSE_MAX:g}, got {seconds}")
