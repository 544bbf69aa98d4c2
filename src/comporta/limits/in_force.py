"""What is in force of a limit: the one record that operators, degradation and pauses write and all obey.

The record is text for people and programs, under ``rate_limiter_change:<name>``. It begins with the four
numbers in force; what else is to be known stands in brackets, and words for people follow::

    50 1 20000 0 50/s burst 50 (token_bucket)
    40 800000 20000000000 0 [degraded to 800000 of 50 1 20000 0 ends 17 dropped 14 climbed 0] 50/s
    10 1 100000 0 [paused until 15 for 6; not set by hand]

Moments are microseconds by the clock of the state. What was not set by hand ends by itself: a degradation
some time after its last step, a pause when it is over. So that nobody has to rewrite the record for that,
rules made from it (:class:`Timed`) know both moments.

Twins: ``in_force`` in ``support.lua`` reads it, ``adjust.lua`` writes it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from comporta.limits.rule import NUMBER_MAX, Numbers, Rule, View, ceil_div
from comporta.steps import WHOLE
from comporta.stores.base import Codec, State
from comporta.stores.records import VALUE_BYTES_MAX

if TYPE_CHECKING:
    from comporta.limits.rule import Ended, Lending, Lent

DEGRADED_US = 300_000_000
"""How long a degradation lasts after its last step."""

PAUSE_US_MAX = 86_400_000_000
PAUSE_SLACK_US = 60_000_000
"""How far a pause may lie further ahead than it is long: further, and the clock was set back; it is over."""

WORDS_MAX = 200

_SCALE_EXACT = 10**14  # up to here a level is the same again after it was written in tokens
_SCALE_MAX = 2**52  # up to here sums are exact in Lua

_TEXT = re.compile(rb"([1-9]\d*) (\d+) (\d+) (\d+)(?: \[(.*?)\])?(.*)", re.DOTALL)
_DEGRADED = re.compile(
    rb"degraded to (\d+) of ([1-9]\d*) (\d+) (\d+) (\d+) ends (\d+) dropped (\d+) climbed (\d+)"
)
_PAUSED = re.compile(rb"paused until (\d+) for (\d+)")
_NOT_SET = b"not set by hand"


@dataclass(frozen=True, slots=True)
class Record:
    """What is in force, as it was written. ``base`` is what degradation starts from and returns to.

    ``by_hand``: the base is an operator's, and holds whatever else comes and goes. Otherwise the base is what
    the writer was configured with, and only a degradation makes it hold for others. ``head`` are the numbers
    as they were read.
    """

    base: Numbers
    by_hand: bool = False
    share: int = WHOLE
    ends_us: int = 0
    dropped_us: int = 0
    climbed_us: int = 0
    until_us: int = 0
    length_us: int = 0
    words: bytes = b""
    head: Numbers | None = None

    @classmethod
    def read(cls, text: bytes | None) -> Record | None:
        """Read a record; nothing for what makes no sense: somebody may have written it by hand."""
        found = _TEXT.match((text or b"")[:VALUE_BYTES_MAX])
        if found is None:
            return None
        numbers, said, words = Numbers(*map(int, found.group(1, 2, 3, 4))), found[5] or b"", found[6]
        degraded, paused = _DEGRADED.search(said), _PAUSED.search(said)
        if degraded and int(degraded[1]) >= WHOLE:
            degraded = None
        base = Numbers(*map(int, degraded.group(2, 3, 4, 5))) if degraded else numbers
        if not (numbers.sensible and base.sensible):
            return None
        share, ends_us, dropped_us, climbed_us = (
            (min(int(n), NUMBER_MAX) for n in degraded.group(1, 6, 7, 8)) if degraded else (WHOLE, 0, 0, 0)
        )
        until_us, length_us = map(int, paused.groups()) if paused else (0, 0)
        return cls(
            base,
            _NOT_SET not in said,
            share,
            ends_us,
            dropped_us,
            climbed_us,
            until_us,
            min(length_us, PAUSE_US_MAX),
            words.removeprefix(b" "),
            numbers,
        )

    @property
    def numbers(self) -> Numbers:
        """The numbers in force, as long as the degradation lasts."""
        return scaled(self.base, self.share)

    def as_of(self, now_us: int) -> Record:
        """Return the record without what is over."""
        found = self
        if self.share < WHOLE and now_us >= self.ends_us:
            found = replace(found, share=WHOLE, ends_us=0, dropped_us=0, climbed_us=0)
        if self.until_us and not self.paused_us(now_us):
            found = replace(found, until_us=0, length_us=0)
        return found

    def paused_us(self, now_us: int) -> int:
        """Return how much is left of the pause."""
        left_us = self.until_us - now_us
        return max(0, min(left_us, self.length_us)) if left_us <= self.length_us + PAUSE_SLACK_US else 0

    @property
    def keeps_us(self) -> int | None:
        """Until when there is something to know; nothing if it must not be forgotten."""
        if self.by_hand:
            return None
        return max(self.ends_us, self.until_us + PAUSE_SLACK_US if self.until_us else 0)

    def written(self) -> bytes:
        """Return the text."""
        said = []
        if self.share < WHOLE:
            base, moments = b" ".join(b"%d" % n for n in self.base), (self.ends_us, self.dropped_us)
            ends = b"ends %d dropped %d climbed %d" % (*moments, self.climbed_us)
            said.append(b"degraded to %d of %b %b" % (self.share, base, ends))
        if self.until_us:
            said.append(b"paused until %d for %d" % (self.until_us, self.length_us))
        if not self.by_hand:
            said.append(_NOT_SET)
        numbers = b" ".join(b"%d" % n for n in self.numbers)
        brackets = [b"[%b]" % b"; ".join(said)] if said else []
        return b" ".join([numbers, *brackets, *([self.words[:WORDS_MAX]] if self.words else [])])


def scaled(base: Numbers, share: int) -> Numbers:
    """Return the numbers of a limit lowered to a share: burst and rate, or what fits a window.

    Fractions of a token are made smaller, by a power of ten, as far as a full bucket can still be counted. So
    steps of 10 % are exact, except where a full bucket has more than 2**52 / 10 fractions already. There, and
    for other shares, the rate is rounded down by less than a fraction per microsecond, but never to nothing.
    """
    if share >= WHOLE:
        return base
    capacity = max(1, base.capacity * share // WHOLE)
    if not base.per_us:
        return base._replace(capacity=capacity)
    full, finer = base.capacity * base.unit, WHOLE
    while finer > 1 and (full * finer > _SCALE_MAX or base.per_us * finer > _SCALE_MAX):
        finer //= 10
    while finer > 1000 and full * finer > _SCALE_EXACT:
        finer //= 10
    per_us = max(1, base.per_us * finer * share // WHOLE)
    return Numbers(capacity, per_us, base.unit * finer, base.window_us)


def one_request(base: Numbers) -> int:
    """Return what share of the limit one request is: per second for buckets, per window for windows."""
    return ceil_div(base.unit, base.per_us) if base.per_us else ceil_div(WHOLE, base.capacity)


def per_second(numbers: Numbers) -> float:
    """Return the rate of a limit."""
    if numbers.per_us:
        return numbers.per_us * 1e6 / numbers.unit
    return numbers.capacity * 1e6 / numbers.window_us


def revised(rule: Any, change: bytes | None) -> Any:
    """Return the rule that reads this one's states and obeys the record.

    Numbers of another kind of limit, as an older version of a program may have set them, say nothing here; a
    pause does.
    """
    record = Record.read(change)
    if record is None:
        return rule
    if not (record.base.suits(rule.numbers) and (record.head or record.base).suits(rule.numbers)):
        record = replace(record, by_hand=False, share=WHOLE, ends_us=0)
    if record.share >= WHOLE and not record.until_us:
        return rule.changed(record.base) if record.by_hand else rule
    return Timed(rule, record)


def untimed(rule: Rule) -> Rule:
    """Return the rule in force for one who cannot tell the time by which a degradation or a pause ends."""
    return rule.lowered if isinstance(rule, Timed) else rule


class Timed:
    """A rule under a record that ends: degraded until a moment, paused until another."""

    __slots__ = ("base", "code", "codec", "lowered", "numbers", "record")

    lasting = False
    """A refusal may end sooner than it says, when the degradation does."""

    def __init__(self, rule: Any, record: Record) -> None:
        self.record = record
        self.base: Rule = rule.changed(record.base) if record.by_hand else rule
        self.lowered: Rule = (
            rule.changed(record.head or record.numbers) if record.share < WHOLE else self.base
        )
        self.code: int = rule.code
        self.codec: Codec = rule.codec
        self.numbers: Numbers = self.lowered.numbers

    def changed(self, numbers: Numbers) -> Rule:
        """Return the rule with other numbers, which do not end."""
        return self.base.changed(numbers)

    def at(self, now_us: int) -> tuple[Rule, int, int]:
        """Return the rule at a moment, for how long it is paused then, and its capacity if not degraded."""
        if now_us < self.record.ends_us:
            return self.lowered, self.record.paused_us(now_us), self.record.base.capacity
        return self.base, self.record.paused_us(now_us), self.base.numbers.capacity

    def numbers_at(self, now_us: int | None) -> tuple[Numbers, Numbers]:
        """Return the numbers in force at a moment, and those without degradation.

        ``None`` is any moment before the degradation ends.
        """
        if self.record.share < WHOLE and (now_us is None or now_us < self.record.ends_us):
            return self.numbers, self.record.base
        return self.base.numbers, self.base.numbers

    def expires_us(self, state: State) -> int:
        """A state is kept as long as either rule has a use for it."""
        return max(self.base.expires_us(state), self.lowered.expires_us(state))

    def revised(self, change: bytes | None) -> Any:
        """Return what the rule without this record would be."""
        return self.base.revised(change)

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Refuse during a pause, whatever there is; otherwise decide by the rule of the moment."""
        rule, paused_us, _ = self.at(now_us)
        new, wait_us = rule.step(state, now_us, cost, patience_us)
        if paused_us and patience_us >= 0:
            anchored = new if wait_us > patience_us else None  # all that a refusal changes
            return anchored, max(wait_us, paused_us, patience_us + 1)
        return new, wait_us

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Give back, pause or not."""
        return self.at(now_us)[0].give(state, now_us, cost)

    def view(self, state: State | None, now_us: int) -> View:
        """Tell how the key stands, pause or not."""
        return self.at(now_us)[0].view(state, now_us)

    def lend(self, state: State, now_us: int, amount: int, life_us: int) -> Lent:
        """Lend by the rule of the moment."""
        return cast("Lending", self.at(now_us)[0]).lend(state, now_us, amount, life_us)

    def take_back(self, state: State, now_us: int, ended: Ended, life_us: int) -> State | None:
        """Take back by the rule of the moment."""
        return cast("Lending", self.at(now_us)[0]).take_back(state, now_us, ended, life_us)
