"""What becomes of a limit while a worker is on its own: its share, everything, or nothing.

The share of one of N workers is the limit divided by N, in such a way that all shares together give the
limit's rate exactly. A share is never zero: it holds one token at the least, or one per stretched window. So
N workers that were idle may grant up to N tokens at one moment even if the limit's burst is smaller, and in
any window less than one token each too much; that is the whole price of rounding.

A share starts empty at the moment of the switch, because what the bucket held may have been spent by others
just before. It counts what it grants, and reports that when the shared state is back.

Windows become sliding windows, whatever they were: a fixed window that starts empty would shut out everybody
until its end, and one that starts full would grant a limit twice. The log of a share starts as if it had been
used up evenly, so it opens bit by bit.
"""

from __future__ import annotations

from comporta.limits.in_force import untimed
from comporta.limits.leaky_bucket import LeakyBucket
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.rule import CHARGE, Numbers, Rule, View, ceil_div
from comporta.limits.sliding_window import SlidingWindow, evenly_used
from comporta.limits.token_bucket import TokenBucket
from comporta.limits.traffic import NO_PAST
from comporta.stores.base import Codec, Outage, State

RETRY_US = 1_000_000
"""When to ask again, if nothing can be granted as long as the outage lasts."""


class Share:
    """A rule divided by the number of workers. State: granted and not reported, the rule's own state."""

    __slots__ = ("_begun", "_name", "_own", "_whole", "code", "codec", "numbers")

    def __init__(self, rule: Rule, name: str, outage: Outage) -> None:
        self._whole = rule
        self._name = name
        self._own, self._begun = _divided(rule, outage.workers, outage.since_us)
        self.code = self._own.code
        self.codec: Codec = self._own.codec
        self.numbers: Numbers = self._own.numbers

    def expires_us(self, state: State) -> int:
        """What has not been reported is kept, as long as the share's own state would be."""
        return self._own.expires_us(state[1])

    def changed(self, numbers: Numbers) -> Share:
        """Not by what is recorded elsewhere."""
        return self

    def at(self, now_us: int) -> tuple[Share, int, int]:
        """It is the same at all times."""
        return self, 0, self.numbers.capacity

    def revised(self, change: bytes | None) -> Share:
        """Changes of limits are not heard of during an outage."""
        return self

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Take from the share."""
        granted, own = state or (0, self._begun)
        new, wait_us = self._own.step(own, now_us, cost, patience_us)
        if new is None:
            return None, wait_us
        return (granted + (cost if wait_us <= patience_us else 0), new), wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Give back what this share granted; what came from the shared state is not its to give."""
        granted, own = state
        mine = min(cost, granted)
        return granted - mine, self._own.give(own, now_us, mine)

    def view(self, state: State | None, now_us: int) -> View:
        """Tell how the share stands."""
        return self._own.view((state or (0, self._begun))[1], now_us)

    def settle(
        self, space: str, key: str, state: State, now_us: int
    ) -> tuple[LimitOperation | None, State | None]:
        """Return what charges the shared limit with what was granted here and would not be back by now."""
        granted, own = state
        if not granted:
            return None, None
        amount = min(granted, self._own.used(own, now_us))
        charge = LimitOperation([Question(self._whole, self._name, key, amount)], CHARGE)
        return charge if amount > 0 else None, (0, own)


class Always:
    """A rule that grants everything, or, with a wait, nothing; it keeps no state."""

    __slots__ = ("_wait_us", "code", "codec", "numbers")

    def __init__(self, rule: Rule, wait_us: int) -> None:
        self._wait_us = wait_us
        self.code = rule.code
        self.codec: Codec = rule.codec
        self.numbers: Numbers = rule.numbers

    @staticmethod
    def expires_us(state: State) -> int:
        """There is no state."""
        return 0

    def changed(self, numbers: Numbers) -> Always:
        """Not by what is recorded elsewhere."""
        return self

    def at(self, now_us: int) -> tuple[Always, int, int]:
        """It is the same at all times."""
        return self, 0, self.numbers.capacity

    def revised(self, change: bytes | None) -> Always:
        """Nothing to revise."""
        return self

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Grant at once, or never within anybody's patience."""
        return None, max(self._wait_us, patience_us + 1) if self._wait_us else 0

    @staticmethod
    def give(state: State, now_us: int, cost: int) -> State:
        """There is nothing to give back to."""
        return state

    def view(self, state: State | None, now_us: int) -> View:
        """All is there, or nothing."""
        return View(0 if self._wait_us else self.numbers.capacity, 0, 0)


def rule_alone(rule: Rule, name: str, fallback: str, outage: Outage) -> Rule:
    """Return the rule by which a worker on its own decides.

    ``"open"`` holds only for accidents: a server that does not let us in opens nothing. A degraded limit is
    shared as it is lowered; a pause is not known here, since it ends by the time of the shared state: whoever
    heard of it remembers it (``Upstream`` does).
    """
    rule = untimed(rule)
    if outage.full or fallback == "closed":
        return Always(rule, RETRY_US)
    if fallback == "open" and not outage.denied:
        return Always(rule, 0)
    return Share(rule, name, outage)


def _divided(
    rule: Rule, workers: int, since_us: int
) -> tuple[TokenBucket | LeakyBucket | SlidingWindow, State]:
    """Return the rule of one worker and the state in which it starts."""
    capacity, per_us, unit, window_us = rule.numbers
    if rule.code in (TokenBucket.code, LeakyBucket.code):
        part = max(1, capacity // workers)
        bucket = (TokenBucket if rule.code == TokenBucket.code else LeakyBucket)(part, per_us, unit * workers)
        level = 0 if rule.code == TokenBucket.code else unit * workers
        return bucket, (level, since_us, unit * workers, 0, NO_PAST)
    part = ceil_div(capacity, workers)
    window = SlidingWindow(part, ceil_div(window_us * part * workers, capacity))
    return window, evenly_used(window, since_us)
