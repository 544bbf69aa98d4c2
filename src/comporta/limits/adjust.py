"""Changing what is in force of a limit, in one step for all who share it.

Errors lower the limit and successes raise it again (degradation), an upstream that asks for it is left alone
for a while (pause), an operator sets other numbers or takes them back. All of that is one record
(``in_force.py``), read by every decision, so nobody can see the new rate with the old burst.

Twin: ``adjust.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from comporta.limits.in_force import DEGRADED_US, Record, one_request
from comporta.limits.operation import CHANGES
from comporta.limits.rule import Numbers
from comporta.steps import WHOLE, is_due, lowered, lowered_to, raised
from comporta.stores.base import GONE, Part, Script, State, key_text
from comporta.stores.lua import lua
from comporta.stores.records import NEVER_US, RECORD


class Adjusted(NamedTuple):
    """What came of it: the shares before and after in millionths, what is left of a pause, and the record."""

    changed: bool
    before: int
    share: int
    paused_us: int
    record: bytes


class _Adjust:
    """What all changes have in common: they read the record as of now, and write what becomes of it."""

    __slots__ = ("_arguments", "name", "numbers")

    script = Script("adjust", partial(lua, "limits", "support", "adjust"))
    verb = "look"
    followed = True
    fields = 5

    def __init__(self, name: str, numbers: Numbers, *arguments: int) -> None:
        self.name = name
        self.numbers = numbers
        self._arguments = arguments

    @property
    def parts(self) -> list[Part]:
        """The one record."""
        return [Part(CHANGES, self.name, RECORD)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Adjusted]:
        """Read, change, write; what is left to nobody is deleted."""
        found = self._found(states[0], now_us)
        new = self._changed(found, now_us)
        if new is not None and new.share == WHOLE:
            new = replace(new, ends_us=0, dropped_us=0, climbed_us=0)
        now = new or found
        says = now.by_hand or now.share < WHOLE or now.until_us
        text = now.written() if says else b""
        changed = new is not None and (self.always or _differs(found, new))
        reply = Adjusted(changed, found.share, now.share, now.paused_us(now_us), text)
        if new is None or not (says or states[0]):
            return [None], reply
        return [(_or_never(now.keeps_us), text) if says else GONE], reply

    always = False
    """Whether it counts as a change even if the numbers are the same."""

    def _changed(self, found: Record, now_us: int) -> Record | None:
        """Return the record as it shall be, or nothing to leave it."""

    def _found(self, state: State | None, now_us: int) -> Record:
        record = None if state is None else Record.read(state[1])
        if record is None:
            return Record(self.numbers)
        record = record.as_of(now_us)
        if not record.by_hand and record.share == WHOLE:
            record = replace(record, base=self.numbers)  # a pause says nothing about the limit
        return record if record.by_hand else replace(record, words=b"")

    def key_names(self) -> list[str]:
        """The one record."""
        return [key_text(CHANGES, self.name)]

    def arguments(self) -> list[int | str | bytes]:
        """Verb, numbers, up to three more, and words."""
        more = (*self._arguments, 0, 0, 0)[:3]
        return [self.verb, *self.numbers, *more, self.words]

    @property
    def words(self) -> bytes:
        """For people."""
        return b""

    @staticmethod
    def undo(reply: object) -> None:
        """It stays as it was decided, whoever waits for the answer."""

    @staticmethod
    def alone(outage: object) -> None:
        """It is for all who share the limit, or it is nothing."""

    @staticmethod
    def parse(raw: Sequence[Any]) -> Adjusted:
        """Read the reply."""
        changed, before, share, paused_us, record = raw
        return Adjusted(bool(changed), before, share, paused_us, record)


class Look(_Adjust):
    """Learn what is in force."""

    __slots__ = ()

    followed = False


class Drop(_Adjust):
    """Lower the limit by a step, above a floor; both in millionths of what it is if not degraded."""

    __slots__ = ()

    verb = "drop"

    def _changed(self, found: Record, now_us: int) -> Record:
        by, floor = self._arguments
        share = lowered(found.share, by, floor)
        return replace(found, share=share, dropped_us=now_us, ends_us=now_us + DEGRADED_US)


class DropTo(_Adjust):
    """Lower the limit to what passes, in requests per 1000 s, above a floor; once in ``round_trip_us``."""

    __slots__ = ()

    verb = "accept"

    def _changed(self, found: Record, now_us: int) -> Record | None:
        passes, floor, round_trip_us = self._arguments
        if found.share < WHOLE and not is_due(now_us, found.dropped_us, round_trip_us):
            return None
        capacity, per_us, unit, window_us = found.base
        # as floats, because that is what the twin has
        over, by = (unit, per_us) if per_us else (window_us, capacity)
        part = float(passes) * over / (by * 1000)
        target = int(min(part, WHOLE))
        share = lowered_to(found.share, target, floor)
        return replace(found, share=share, dropped_us=now_us, ends_us=now_us + DEGRADED_US)


class Climb(_Adjust):
    """Raise a lowered limit by a step, one request at the least, if the last step is long enough ago."""

    __slots__ = ()

    verb = "climb"

    def _changed(self, found: Record, now_us: int) -> Record | None:
        by, every_us = self._arguments
        last_us = max(found.dropped_us, found.climbed_us)
        if found.share == WHOLE or not is_due(now_us, last_us, every_us):
            return None
        share = raised(found.share, max(by, one_request(found.base)))
        return replace(found, share=share, climbed_us=now_us, ends_us=now_us + DEGRADED_US)


class Pause(_Adjust):
    """Let nothing pass for so many microseconds; a pause that ends later stays as it is."""

    __slots__ = ()

    verb = "pause"

    def _changed(self, found: Record, now_us: int) -> Record | None:
        [length_us] = self._arguments
        if length_us <= found.paused_us(now_us):
            return None
        return replace(found, until_us=now_us + length_us, length_us=length_us)


class Resume(_Adjust):
    """End a pause."""

    __slots__ = ()

    verb = "resume"

    def _changed(self, found: Record, now_us: int) -> Record | None:
        return replace(found, until_us=0, length_us=0) if found.until_us else None


class SetByHand(_Adjust):
    """Put an operator's numbers in force; what was lowered begins anew from them, a pause goes on."""

    __slots__ = ("_words",)

    verb = "set"
    always = True

    def __init__(self, name: str, numbers: Numbers, words: str) -> None:
        super().__init__(name, numbers)
        self._words = words.encode()

    @property
    def words(self) -> bytes:
        """What the operator wrote."""
        return self._words

    def _changed(self, found: Record, now_us: int) -> Record:
        paused = Record(self.numbers, until_us=found.until_us, length_us=found.length_us)
        return replace(paused, by_hand=True, words=self._words)


class Revoke(_Adjust):
    """Take back what an operator set, and what was lowered since; a pause goes on."""

    __slots__ = ()

    verb = "revoke"
    always = True

    def _changed(self, found: Record, now_us: int) -> Record:
        return Record(self.numbers, until_us=found.until_us, length_us=found.length_us)


def _differs(old: Record, new: Record) -> bool:
    return (old.share, old.until_us) != (new.share, new.until_us)


def _or_never(keeps_us: int | None) -> int:
    return NEVER_US if keeps_us is None else keeps_us
