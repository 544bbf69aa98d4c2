"""Taking from one limit: the hot operation, and the least a server can be asked and answer.

What all calls for one limit have in common (its numbers, the change an operator may have made) is sent
once however many keys are asked for together, and the answer to each is one number.

Twin: ``take.lua`` over the strategy's own Lua file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from comporta.limits.operation import CHANGES, SPACE, STRATEGIES, LimitOperation, Question, unusable
from comporta.limits.rule import Rule
from comporta.stores.base import Outage, Part, Script, State, key_text
from comporta.stores.lua import lua


@cache
def _script_text(code: int) -> str:
    name = STRATEGIES[code - 1]
    return "\n".join(
        [lua("limits", "support", "traffic", name), f"local strategy = {name}", lua("limits", "take")]
    )


class Asked:
    """One limit, ready to be asked. ``fallback``: what to do alone (see ``share.py``).

    ``known`` tells the rule in force, as far as this process knows of operators' changes.
    """

    __slots__ = ("_alone", "fallback", "known", "name", "rule", "script", "space")

    def __init__(self, rule: Rule, name: str, fallback: str = "share") -> None:
        self.rule = rule
        self.name = name
        self.fallback = fallback
        self.known: Callable[[], Rule] = lambda: rule
        self._alone: tuple[Outage, Asked] | None = None
        self.space = f"{SPACE}:{name}"
        self.script = Script(
            f"take {STRATEGIES[rule.code - 1]}",
            partial(_script_text, rule.code),
            joins=True,
            keys=(key_text(CHANGES, name),),
            arguments=tuple(rule.numbers),
            counted=True,
        )

    def alone(self, outage: Outage) -> Asked:
        """Return this worker's own part of the limit, the same one throughout an outage."""
        from comporta.limits.share import rule_alone  # noqa: PLC0415 - shares report by operations

        kept = self._alone
        if kept is None or kept[0] is not outage:
            own = Asked(rule_alone(self.known(), self.name, self.fallback, outage), self.name)
            kept = self._alone = (outage, own)
        return kept[1]


class Take:
    """Take from one limit; the reply is the wait in microseconds."""

    __slots__ = ("_asked", "amount", "key", "script")

    followed = False
    fields = 1

    def __init__(self, asked: Asked, key: str, amount: int) -> None:
        self._asked = asked
        self.script = asked.script
        self.key = key
        self.amount = amount

    @property
    def parts(self) -> list[Part]:
        """The state of the key."""
        return [Part(self._asked.space, self.key, self._asked.rule)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Decide."""
        new, wait_us = self._asked.rule.step(states[0], now_us, self.amount)
        return [new], wait_us

    def key_names(self) -> tuple[str]:
        """The state of the key."""
        return (key_text(self._asked.space, self.key),)

    def arguments(self) -> tuple[int]:
        """How much."""
        return (self.amount,)

    def undo(self, reply: int) -> LimitOperation | None:
        """Give back what was granted to a caller that is gone."""
        return None if reply else LimitOperation([self._question(-self.amount)])

    def alone(self, outage: Outage) -> Take:
        """Take from this worker's own part of the limit."""
        return Take(self._asked.alone(outage), self.key, self.amount)

    def parse(self, raw: Sequence[Any]) -> int:
        """Read the wait; an error in its place names the key it came from."""
        wait_us = raw[0]
        if isinstance(wait_us, int):
            return wait_us
        raise unusable(self._question(self.amount), wait_us)

    def _question(self, amount: int) -> Question:
        return Question(self._asked.rule, self._asked.name, self.key, amount)
