"""What a limiting algorithm looks like to the rest: a value with pure methods.

A rule holds the numbers of one limit and no state; a store hands it the state of a key, under the
store's own atomicity, and keeps what it returns. No rule reads a clock or does I/O.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from comporta.stores.base import Codec, State

CHARGE = -1
"""In place of a patience; a debt this makes is bounded (one second of a bucket's rate)."""

KEPT_AT_LEAST_US = 60_000_000
"""A state is kept for a minute after its last change, because it also counts the last minute."""


NUMBER_MAX = 2**53
"""Up to here numbers, and the level of a full bucket, are exact in Lua; what can be configured is below."""

WINDOW_US_MAX = 10**14


class View(NamedTuple):
    """How a key stands at one moment."""

    remaining: int
    reset_us: int
    recent: int


class Lent(NamedTuple):
    """A lease as it is made: for how long it may be used, and by which name the rule knows it."""

    state: State
    life_us: int
    name: int


class Ended(NamedTuple):
    """A lease that its holder ends: how much was lent, how much of that was not used."""

    name: int
    lent: int
    unused: int


class Numbers(NamedTuple):
    """The numbers of a limit as the Lua twins take them."""

    capacity: int
    per_us: int
    unit: int
    window_us: int

    @property
    def sensible(self) -> bool:
        """Whether they can be those of a limit: somebody may have written them by hand."""
        if max(self) > NUMBER_MAX or self.window_us > WINDOW_US_MAX:
            return False
        if self.per_us and self.unit:
            return 0 < self.capacity * self.unit <= NUMBER_MAX
        return bool(self.capacity and self.window_us)

    def suits(self, other: Numbers) -> bool:
        """Whether these can be in force where others are configured: another program may count otherwise."""
        if other.per_us:
            return bool(self.per_us and self.unit)
        return not self.per_us and bool(self.window_us) and (bool(self.unit) or not other.unit)

    def written(self, words: str) -> bytes:
        """Return the numbers as an operator's change is recorded."""
        return " ".join([*map(str, self), words]).encode()


class Rule(Protocol):
    """A limiting algorithm with its numbers."""

    @property
    def code(self) -> int:
        """The number by which ``limit.lua`` knows the algorithm."""

    @property
    def numbers(self) -> Numbers:
        """The numbers for the Lua twin."""

    @property
    def codec(self) -> Codec:
        """How a state is laid out in bytes."""

    def expires_us(self, state: State) -> int:
        """Tell from when on this state means no more than having none."""

    def changed(self, numbers: Numbers) -> Rule:
        """Return the rule that reads this one's states and has other numbers."""

    def revised(self, change: bytes | None) -> Rule:
        """Return the rule that reads this one's states and obeys what is recorded (``in_force.py``)."""

    def at(self, now_us: int) -> tuple[Rule, int, int]:
        """Return the rule at a moment, for how long it is paused then, and its capacity if not degraded."""

    def step(
        self, state: State | None, now_us: int, cost: int, patience_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` if it is there.

        Returns the state to keep (``None``: unchanged) and a wait in microseconds. A wait within
        ``patience_us`` means granted, to be used after the wait; a longer one means refused, and when
        to ask again. Only a rule that keeps a queue can grant with a wait above 0. A patience of
        ``CHARGE`` says that it was used already, elsewhere: it is taken whether it is there or not.
        """

    def give(self, state: State, now_us: int, cost: int) -> State:
        """Give back what was taken and not used."""

    def view(self, state: State | None, now_us: int) -> View:
        """Tell how the key stands, changing nothing."""


class Lending(Rule, Protocol):
    """A rule whose units may be taken in one step and used later; every rule of a limit with a lease."""

    def lend(self, state: State, now_us: int, amount: int, life_us: int) -> Lent:
        """Note that ``amount`` of what was just taken will be used later, within ``life_us`` at the most."""

    def take_back(self, state: State, now_us: int, ended: Ended, life_us: int) -> State | None:
        """Take back what is left of a lease; ``None`` if it is over already."""


def ceil_div(amount: int, by: int) -> int:
    """Divide and round up."""
    return -(-amount // by)


def rescaled(level: int, unit: int, new_unit: int) -> int:
    """Return a level counted in fractions of a token, after the size of the fraction changed."""
    return (2 * level * new_unit + unit) // (2 * unit)
