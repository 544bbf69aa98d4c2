"""Permits for calls in flight: taking, giving back, renewing and listing them, as operations.

A permit has an owner and a deadline. Whoever is killed while holding one keeps it from the others until then
and no longer; a refusal extends nothing. Whoever waits for one leaves a claim (``claims.py``), and a take
leaves a permit free for each claim of another process that is due.

Twins: ``permits.lua``, ``holders.lua``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from comporta.limits import claims as claiming
from comporta.limits.claims import DUE_US, Claim, Claims
from comporta.stores.base import GONE, Outage, Part, Script, State, key_text
from comporta.stores.lua import lua
from comporta.stores.naming import named
from comporta.stores.workers import Worker

SPACE = "concurrency"

SHARED_MAX = 200
"""How many permits of one limit a state of this machine has room for; a server and memory have more."""

_ENTRIES_MAX = SHARED_MAX + 10
"""So many permits and claims together have room there; what is left of it by the permits is for claims."""

_PACE_US_MIN = 2_000
_PACE_PART = 16
"""Whose turn it is asks again after this part of the time that the last call has taken so far."""

_HEAD = Struct("<HH")
_ENTRY = Struct("<qQI")
_HOST = Worker.here().host
_EMPTY: State = ((), ())

Held = tuple[int, str]
"""When a permit ends, and ``id owner``."""

Out = tuple[Held, ...]
"""Permits that are out."""


class Permit(NamedTuple):
    """The right to one call in flight: a number nobody else has, and who holds it (``host:pid``)."""

    id: str
    owner: str

    def __str__(self) -> str:
        return f"{self.id} {self.owner}"

    @classmethod
    def new(cls) -> Permit:
        """Return one for this process; a forked child is another."""
        return cls(os.urandom(8).hex(), f"{_HOST}:{os.getpid()}")


class Holder(NamedTuple):
    """Who holds a permit, and for how many seconds at the most."""

    owner: str
    seconds_left: float


class Taken(NamedTuple):
    """Whether it was done; for a refusal, how long until the first of the others ends.

    ``pace_us``: somebody waits elsewhere, so that it is worth asking again after so long; 0: no hurry.
    """

    done: bool
    wait_us: int = 0
    pace_us: int = 0


class _PermitsCodec:
    """How many of both, then end, number (of claims: since when) and process of each, all of this machine.

    Claims for which there is no room are the youngest; they are as if they had never been made.
    """

    size = _HEAD.size + _ENTRIES_MAX * _ENTRY.size

    @staticmethod
    def pack_into(buffer: Any, offset: int, /, *state: Any) -> None:
        permits, claims = state
        claims = claims[: _ENTRIES_MAX - len(permits)]
        entries = [
            *((deadline_us, int(text[:16], 16), _pid(text)) for deadline_us, text in permits),
            *((ends_us, since_us, _pid(owner)) for since_us, owner, ends_us in claims),
        ]
        _HEAD.pack_into(buffer, offset, len(permits), len(claims))
        for number, entry in enumerate(entries):
            _ENTRY.pack_into(buffer, offset + _HEAD.size + number * _ENTRY.size, *entry)

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        count, claims = _HEAD.unpack_from(buffer, offset)
        start = offset + _HEAD.size
        entries = [*_ENTRY.iter_unpack(buffer[start : start + (count + claims) * _ENTRY.size])]
        return (
            tuple((ends_us, f"{identity:016x} {_HOST}:{pid}") for ends_us, identity, pid in entries[:count]),
            tuple(Claim(since_us, f"{_HOST}:{pid}", ends_us) for ends_us, since_us, pid in entries[count:]),
        )


class _PermitsKind:
    """State: the permits that are out, the first to end first; and the claims of those who wait."""

    codec = _PermitsCodec()

    @staticmethod
    def expires_us(state: State) -> int:
        """When the last of them has ended."""
        permits, claims = state
        return int(max(*(held[0] for held in permits[-1:]), *(claim.ends_us for claim in claims), 0))


PERMITS = _PermitsKind()


class Room(NamedTuple):
    """How many permits a limit has, and how long each holds."""

    name: str
    most: int
    hold_us: int

    @property
    def part(self) -> Part:
        """Where they are kept."""
        return Part(SPACE, self.name, PERMITS)

    def out(self, state: State | None, now_us: int) -> Out:
        """Return the permits that are out; one that ends later than any can (a clock was set back) is cut."""
        latest_us = now_us + self.hold_us
        permits, _ = state or _EMPTY
        return tuple((min(held[0], latest_us), held[1]) for held in permits if held[0] > now_us)


class PermitOperation(ABC):
    """What taking, giving back and renewing have in common: a permit, or several to give back."""

    __slots__ = ("_permits", "_room", "_texts")

    script = Script("permits", partial(lua, "limits", "permits"), joins=True)
    followed = False
    fields = 3
    verb = ""

    def __init__(self, room: Room, *permits: Permit) -> None:
        self._room = room
        self._permits = permits
        self._texts = [str(permit) for permit in permits]

    @property
    def parts(self) -> list[Part]:
        """The permits of the limit, and the claims to them."""
        return [self._room.part]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Taken]:
        """Strike the permits whose time is over, and do it."""
        old = states[0] or _EMPTY
        permits, claims, taken = self._done(self._room.out(states[0], now_us), old[1], now_us)
        new = (tuple(sorted(permits)), claims)
        if new == old:
            return [None], taken
        return [GONE if new == _EMPTY else new], taken

    @abstractmethod
    def _done(self, out: Out, claims: Claims, now_us: int) -> tuple[Out, Claims, Taken]:
        """Return the permits that are out afterwards, the claims to others, and the reply."""

    def _held(self, out: Out, now_us: int) -> Out:
        return (*self._others(out), (now_us + self._room.hold_us, self._texts[0]))

    def _others(self, out: Out) -> Out:
        return tuple(held for held in out if held[1] not in self._texts)

    def key_names(self) -> tuple[str, str]:
        """The permits of the limit, and the claims to them."""
        key = key_text(SPACE, self._room.name)
        return key, f"{key}:waiting"

    def arguments(self) -> list[int | str | bytes]:
        """Verb, permits, and the numbers of the limit."""
        return [self.verb, "\n".join(self._texts), self._room.most, self._room.hold_us]

    def undo(self, reply: Taken) -> PermitOperation | None:
        """Nothing was granted."""
        return None

    def alone(self, outage: Outage) -> PermitOperation:
        """Go by this worker's part of the permits, one at the least; where it has no room, by none."""
        most = 0 if outage.full else max(1, self._room.most // outage.workers)
        return type(self)(self._room._replace(most=most), *self._permits)

    def parse(self, raw: Sequence[Any]) -> Taken:
        """Read three numbers; in place of the first an error, then the second tells which key it is about."""
        done, wait_us, pace_us = raw
        if not isinstance(done, int):
            key = self.key_names()[wait_us]
            raise named(RuntimeError(done.decode("utf-8", "replace")), repr(key), repr(key))
        return Taken(done == 1, int(wait_us), int(pace_us))


class TakePermit(PermitOperation):
    """Take a permit, if there is one that is not left free for somebody elsewhere who has waited for long.

    Whoever does not wait leaves no claim, and is behind all whose claims are due.
    """

    __slots__ = ()

    verb = "take"

    def _done(self, out: Out, claims: Claims, now_us: int) -> tuple[Out, Claims, Taken]:
        claims = claiming.live(claims, now_us)
        since_us = self._since_us(claims, now_us)
        ahead = claiming.ahead(claims, self._owner, since_us)
        others = self._others(out)  # who asks again may have been granted it, and not have heard
        if len(others) + ahead < self._room.most:
            return self._held(others, now_us), self._served(claims), Taken(True)
        wait_us = min(others)[0] - now_us if others else self._room.hold_us
        refused = Taken(False, wait_us, self._pace_us(others, claims, ahead, now_us))
        return others, self._refused(claims, since_us, now_us), refused

    @property
    def _owner(self) -> str:
        return self._permits[0].owner

    def _since_us(self, claims: Claims, now_us: int) -> int:
        return now_us

    def _served(self, claims: Claims) -> Claims:
        return claims

    def _refused(self, claims: Claims, since_us: int, now_us: int) -> Claims:
        return claims

    def _pace_us(self, others: Out, claims: Claims, ahead: int, now_us: int) -> int:
        return 0

    def undo(self, reply: Taken) -> GivePermit | None:
        """Give it back for a caller that is gone."""
        return GivePermit(self._room, *self._permits) if reply.done else None


class AwaitPermit(TakePermit):
    """Take a permit, or leave a claim: whoever asks so will ask again."""

    __slots__ = ()

    verb = "wait"

    def _since_us(self, claims: Claims, now_us: int) -> int:
        return claiming.since_us(claims, self._owner, now_us)

    def _served(self, claims: Claims) -> Claims:
        return claiming.without(claims, self._owner)

    def _refused(self, claims: Claims, since_us: int, now_us: int) -> Claims:
        return claiming.renewed(claims, self._owner, since_us, now_us)

    def _pace_us(self, others: Out, claims: Claims, ahead: int, now_us: int) -> int:
        """Return when to look again, for one whose turn it is or who gives way; the others have time."""
        last = max(others, default=None)
        if not ahead:
            due = now_us - self._since_us(claims, now_us) >= DUE_US
            elsewhere = last is not None and last[1].partition(" ")[2] != self._owner
            if not due or not (elsewhere or claiming.without(claims, self._owner)):
                return 0
        taken_us = 0 if last is None else now_us + self._room.hold_us - last[0]
        return max(_PACE_US_MIN, taken_us // _PACE_PART) * (1 + ahead // self._room.most)

    def alone(self, outage: Outage) -> PermitOperation:
        """Go by this worker's part of the permits: nobody else is there to be told of a claim."""
        return TakePermit(self._room, *self._permits).alone(outage)


class LastTake(AwaitPermit):
    """Take a permit, or go away and withdraw the claim: nobody shall wait for one who has gone."""

    __slots__ = ()

    verb = "last"

    def _refused(self, claims: Claims, since_us: int, now_us: int) -> Claims:
        return claiming.without(claims, self._owner)

    def _pace_us(self, others: Out, claims: Claims, ahead: int, now_us: int) -> int:
        return 0


class GivePermit(PermitOperation):
    """Give permits back; one that has ended already is somebody else's by now."""

    __slots__ = ()

    verb = "give"

    def _done(self, out: Out, claims: Claims, now_us: int) -> tuple[Out, Claims, Taken]:
        others = self._others(out)
        return others, claims, Taken(len(others) < len(out))


class RenewPermit(PermitOperation):
    """Hold a permit for as long again, from now; one that has ended cannot be."""

    __slots__ = ()

    verb = "renew"

    def _done(self, out: Out, claims: Claims, now_us: int) -> tuple[Out, Claims, Taken]:
        if self._others(out) == out:
            return out, claims, Taken(False)
        return self._held(out, now_us), claims, Taken(True)


class Holders:
    """List who holds permits, and for how long at the most."""

    __slots__ = ("_room",)

    script = Script("holders", partial(lua, "limits", "holders"))
    followed = False
    fields = 1

    def __init__(self, room: Room) -> None:
        self._room = room

    @property
    def parts(self) -> list[Part]:
        """The permits of the limit."""
        return [self._room.part]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], list[Holder]]:
        """Look, change nothing."""
        out = sorted(self._room.out(states[0], now_us))
        return [None], [_holder(permit, deadline_us - now_us) for deadline_us, permit in out]

    def key_names(self) -> tuple[str]:
        """The permits of the limit."""
        return (key_text(SPACE, self._room.name),)

    def arguments(self) -> tuple[int]:
        """How long one can hold."""
        return (self._room.hold_us,)

    @staticmethod
    def undo(reply: object) -> None:
        """Looking changes nothing."""

    def alone(self, outage: Outage) -> Holders:
        """Show this worker's own."""
        return self

    @staticmethod
    def parse(raw: Sequence[Any]) -> list[Holder]:
        """Permit and microseconds left, by turns."""
        return [
            _holder(permit.decode("utf-8", "replace"), int(left_us))
            for permit, left_us in zip(raw[::2], raw[1::2], strict=True)
        ]


def _holder(permit: str, left_us: int) -> Holder:
    return Holder(permit.partition(" ")[2], left_us / 1e6)


def _pid(owner: str) -> int:
    return int(owner.rpartition(":")[2])
