"""Leases: many units of one limit taken in one step, to be used one by one without asking again.

One operation ends the lease a worker has and makes it the next one, so that a busy worker asks once for each
lease. What it needs at once is taken as anybody takes it; what comes on top of that is lent. This file knows
how that is asked; ``leased.py`` how a worker lives on it.

Twin: ``lease.lua`` over the strategy's own Lua file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, NamedTuple, cast

from comporta.limits.operation import CHANGES, SPACE, STRATEGIES, Question, unusable
from comporta.limits.rule import Ended, Lending
from comporta.limits.take import Asked, Take
from comporta.stores.base import Operation, Outage, Part, Script, State, key_text
from comporta.stores.lua import lua


class Lease(NamedTuple):
    """What the limit says: so much granted, to be used within ``life_us``.

    ``wait_us`` is how long until there is more: after a refusal, and after less was granted than wanted, so
    that whoever has used it up need not ask to hear that there is nothing.
    """

    granted: int
    life_us: int
    wait_us: int
    name: int


NO_LEASE = Ended(0, 0, 0)
REFUSED = Lease(0, 0, 0, 0)


@cache
def _script_text(code: int) -> str:
    name = STRATEGIES[code - 1]
    return "\n".join(
        [
            lua("limits", "support", "traffic", name),
            f"local strategy, code = {name}, {code}",
            lua("limits", "lease"),
        ]
    )


class Lender:
    """One limit, ready to be asked for leases that live for ``life_us`` at the most."""

    __slots__ = ("asked", "life_us", "name", "rule", "script", "space")

    def __init__(self, rule: Lending, asked: Asked, life_us: int) -> None:
        self.rule = rule
        self.asked = asked
        self.name = name = asked.name
        self.life_us = life_us
        self.space = f"{SPACE}:{name}"
        self.script = Script(
            f"lease {STRATEGIES[rule.code - 1]}",
            partial(_script_text, rule.code),
            joins=True,
            counted=True,
            keys=(key_text(CHANGES, name),),
            arguments=(*rule.numbers, life_us),
        )


class LeaseOperation:
    """End a lease, and take ``need``, and up to ``want`` in all if it is there; a need of 0 only ends."""

    __slots__ = ("_lender", "ended", "key", "need", "script", "want")

    followed = False
    fields = len(Lease._fields)

    def __init__(self, lender: Lender, key: str, need: int, want: int, ended: Ended = NO_LEASE) -> None:
        self._lender = lender
        self.script = lender.script
        self.key = key
        self.need = need
        self.want = want
        self.ended = ended

    @property
    def parts(self) -> list[Part]:
        """The state of the key."""
        return [Part(self._lender.space, self.key, self._lender.rule)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Lease]:
        """Take back, then take and lend."""
        (rule, paused_us), life_us = self._rule(now_us), self._lender.life_us
        [state] = states
        taken_back = None
        if state is not None and (self.ended.lent or self.ended.unused):
            taken_back = rule.take_back(state, now_us, self.ended, life_us)
            state = taken_back or state
        if not self.need:
            return [taken_back], REFUSED
        if paused_us:
            new, wait_us = rule.step(state, now_us, self.need)
            anchored = new if wait_us else None  # all that a refusal changes
            return [anchored or taken_back], REFUSED._replace(wait_us=max(wait_us, paused_us))
        amount = max(self.need, min(self.want, rule.view(state, now_us).remaining))
        new, wait_us = rule.step(state, now_us, amount)
        if new is None or wait_us:
            return [new or taken_back], REFUSED._replace(wait_us=wait_us)
        kept, life_us, name = rule.lend(new, now_us, amount - self.need, life_us)
        wait_us = rule.step(kept, now_us, 1)[1] if amount < self.want else 0
        return [kept], Lease(amount, life_us, wait_us, name)

    def _rule(self, now_us: int) -> tuple[Lending, int]:
        rule, paused_us, _ = self._lender.rule.at(now_us)
        return cast(Lending, rule), paused_us

    def key_names(self) -> tuple[str]:
        """The state of the key."""
        return (key_text(self._lender.space, self.key),)

    def arguments(self) -> tuple[int, ...]:
        """What is needed and wanted, and what is over."""
        return (self.need, self.want, *self.ended)

    def undo(self, reply: Lease) -> LeaseOperation | None:
        """Give back what was granted to a caller that is gone."""
        if not reply.granted:
            return None
        ended = Ended(reply.name, reply.granted - self.need, reply.granted)
        return LeaseOperation(self._lender, self.key, 0, 0, ended)

    def alone(self, outage: Outage) -> Operation[Lease]:
        """Take what is needed from this worker's own part of the limit; there is nobody to lend."""
        own = LeaseAlone(self._lender.asked.alone(outage), self.key, self.need)
        return cast("Operation[Lease]", own)

    def parse(self, raw: Sequence[Any]) -> Lease:
        """Read the lease; an error in its place names the key it came from."""
        if isinstance(raw[0], int):
            return Lease._make(raw)
        raise unusable(Question(self._lender.rule, self._lender.name, self.key, self.need), raw[0])


class LeaseAlone(Take):
    """Take from this worker's own part of a limit; the answer has the form of a lease of just that."""

    __slots__ = ()

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Lease]:  # type: ignore[override]
        """Decide; what an ended lease left unused is the shared state's, and gone."""
        if not self.amount:
            return [None], REFUSED
        kept, wait_us = super().step(states, now_us)
        return kept, REFUSED._replace(wait_us=wait_us) if wait_us else Lease(self.amount, 0, 0, 0)
