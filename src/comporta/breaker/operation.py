"""A step of a circuit as an operation that any store can apply, and its form for a worker that is alone.

Twin: ``breaker.lua``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from comporta.breaker.codec import CIRCUIT
from comporta.breaker.machine import anchored, step
from comporta.breaker.state import (
    EMPTY,
    GIVE_BACK,
    OPEN_UP,
    Asked,
    Circuit,
    Forced,
    Reply,
    Rules,
    forced_by,
)
from comporta.errors import StateTypeError
from comporta.stores.base import GONE, Codec, Outage, Part, Script, State, key_text
from comporta.stores.lua import lua
from comporta.stores.naming import named
from comporta.stores.records import RECORD

SPACE = "circuit_breaker"
CHANGES = "circuit_breaker_change"
_KEYS = ("failures", "degraded_until", "half_open", "calls")
_FIELDS = 12


SCRIPT = Script("breaker", partial(lua, "breaker", "breaker"), joins=True)


class Known(NamedTuple):
    """What a worker knew of a circuit when it lost sight of the shared one, by its own clock."""

    circuit: Circuit
    forced: Forced


class Step:
    """One step of one circuit.

    ``known`` tells what this worker knows, should it have to go on alone. ``live`` is how many workers there
    are: no more can agree.
    """

    __slots__ = ("_asked", "_known", "_live", "_name", "_rules")

    script = SCRIPT
    followed = False
    fields = _FIELDS

    def __init__(
        self, name: str, rules: Rules, asked: Asked, known: Callable[[], Known], live: int = 16
    ) -> None:
        self._name = name
        self._rules = rules
        self._asked = asked
        self._known = known
        self._live = live

    @property
    def parts(self) -> list[Part]:
        """The circuit, and what an operator said of it."""
        return [Part(f"{SPACE}:{self._name}", "", CIRCUIT), Part(CHANGES, self._name, RECORD)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Reply]:
        """Do it; a state that says nothing is not kept."""
        own, change = states
        forced = forced_by(None if change is None else change[1])
        old = EMPTY if own is None else Circuit._make(own)
        new, reply = step(old, self._in_force(), self._asked, now_us, forced)
        return [_kept(own, new, now_us), None], reply

    def key_names(self) -> list[str]:
        """Four keys that operators can read, and their own."""
        space = f"{SPACE}:{self._name}"
        return [*(key_text(space, key) for key in _KEYS), key_text(CHANGES, self._name)]

    def arguments(self) -> list[int | str | bytes]:
        """The verb, the rules, and what is told."""
        verb, *told, owner, why = self._asked
        return [verb, *self._in_force(), *told, owner, why.encode("utf-8", "replace")]

    def undo(self, reply: Reply) -> Step | None:
        """Give back a probe that was granted to a caller that is gone."""
        if not reply.probe:
            return None
        return Step(self._name, self._rules, Asked(GIVE_BACK, probe=reply.probe), self._known)

    def alone(self, outage: Outage) -> StepAlone:
        """Go by what this worker knew, with its part of the threshold and one probe of its own."""
        return StepAlone(self._name, self._rules, self._asked, self._known(), outage.workers)

    def parse(self, raw: Sequence[Any]) -> Reply:
        """Read the reply; an error in its place is that of a key."""
        moment_us, *_ = raw
        if isinstance(moment_us, bytes):
            raise _unusable(self._name, moment_us)
        *before, why, probe, change, probes = raw
        for number in (*before, probe, change):
            if not isinstance(number, int):
                raise TypeError("no number")
        if len(raw) != _FIELDS:
            raise ValueError("wrong length")
        return Reply._make([*before, _text(why), probe, change, _probes(_text(probes)), False])

    def _in_force(self) -> Rules:
        rules = self._rules
        return rules if rules.quorum <= self._live else rules._replace(quorum=max(1, self._live))


class StepAlone(Step):
    """The same step on this worker's own circuit, which begins as the shared one was when last seen."""

    __slots__ = ("_forced", "_kind")

    def __init__(self, name: str, rules: Rules, asked: Asked, known: Known, workers: int) -> None:
        own = rules._replace(threshold=-(-rules.threshold // workers), quorum=1, probes=1)
        super().__init__(name, own, asked, lambda: known, 1)
        self._forced = known.forced
        self._kind = CircuitAlone(name, rules, known.circuit, asked.owner, workers)

    @property
    def parts(self) -> list[Part]:
        """This worker's circuit; an operator's word is known, or cannot be."""
        return [Part(f"{SPACE}:{self._name}", "", self._kind)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Reply]:
        """Do it."""
        [own] = states
        old = self._kind.begun if own is None else Circuit._make(own)
        new, reply = step(old, self._rules, self._asked, now_us, self._forced)
        return [_kept(own, new, now_us)], reply._replace(alone=True)


class CircuitAlone:
    """The kind of a worker's own circuit: if it is open it is told to the others on return.

    Also if it was open before: a server that was started anew, or a replica in its place, may not know that.
    """

    __slots__ = ("_name", "_owner", "_rules", "_told", "_workers", "begun")

    codec: Codec = CIRCUIT.codec

    def __init__(self, name: str, rules: Rules, begun: Circuit, owner: str, workers: int) -> None:
        self._name = name
        self._rules = rules
        self._owner = owner
        self._workers = workers
        self._told = 0
        self.begun = begun

    @staticmethod
    def expires_us(state: State) -> int:
        """As long as the shared one would be."""
        return CIRCUIT.expires_us(state)

    def settle(self, space: str, key: str, state: State, now_us: int) -> tuple[Step | None, State | None]:
        """Return what opens the shared circuit for the time that is left, once for each opening."""
        circuit = anchored(Circuit._make(state), self._rules, now_us)
        if circuit.generation == self._told or not circuit.open_until_us:
            return None, None
        self._told = circuit.generation
        left_us, age_us = circuit.open_until_us - now_us, now_us - circuit.opened_us
        asked = Asked(OPEN_UP, left_us=left_us, age_us=age_us, owner=self._owner, why=circuit.why)
        return Step(self._name, self._rules, asked, lambda: Known(circuit, Forced()), self._workers), None


def _kept(old: State | None, new: Circuit, now_us: int) -> State | None:
    """Return what a store shall do about a circuit: keep the new one, none, or let it be."""
    if new.ends_us <= now_us:
        return None if old is None else GONE
    return None if new == old else new


def _unusable(name: str, error: bytes) -> Exception:
    text, key = error.decode("utf-8", "replace"), f"{SPACE}:{name}"
    if "WRONGTYPE" not in text:
        return named(RuntimeError(text), repr(key))
    return StateTypeError(
        f"one of the keys {key!r}:* does not hold the state of a breaker, left as it is: {text}"
    )


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise TypeError("no text")
    return value.decode("utf-8", "replace")


def _probes(text: str) -> tuple[tuple[int, str], ...]:
    rows = [row.split(" ") for row in text.split(",") if row]
    return tuple((int(left_us), owner) for left_us, owner in rows)
