"""Permits for calls in flight: taking, giving back, renewing and listing them, as operations.

A permit has an owner and a deadline. Whoever is killed while holding one keeps it from the others until then
and no longer; a refusal extends nothing.

Twins: ``permits.lua``, ``holders.lua``.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any, NamedTuple

from comporta.limits.operation import lua
from comporta.stores.base import GONE, Outage, Part, Script, State, key_text
from comporta.stores.naming import named
from comporta.stores.workers import Worker

SPACE = "concurrency"

SHARED_MAX = 200
"""How many permits of one limit a state of this machine has room for; a server and memory have more."""

_HEAD = Struct("<H")
_ENTRY = Struct("<qQI")
_HOST = Worker.here().host

Held = tuple[int, str]
"""When a permit ends, and ``id owner``."""


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
    """Whether it was done; for a refusal, how long until the first of the others ends."""

    done: bool
    wait_us: int = 0


class _PermitsCodec:
    """How many, then deadline, number and process of each: all processes are of this machine."""

    size = _HEAD.size + SHARED_MAX * _ENTRY.size

    @staticmethod
    def pack_into(buffer: Any, offset: int, /, *state: Any) -> None:
        _HEAD.pack_into(buffer, offset, len(state))
        for number, (deadline_us, permit) in enumerate(state):
            identity, _, owner = permit.partition(" ")
            at = offset + _HEAD.size + number * _ENTRY.size
            _ENTRY.pack_into(buffer, at, deadline_us, int(identity, 16), int(owner.rpartition(":")[2]))

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        [count] = _HEAD.unpack_from(buffer, offset)
        start = offset + _HEAD.size
        entries = _ENTRY.iter_unpack(buffer[start : start + count * _ENTRY.size])
        return tuple(
            (deadline_us, f"{identity:016x} {_HOST}:{pid}") for deadline_us, identity, pid in entries
        )


class _PermitsKind:
    """State: the permits that are out, the first to end first."""

    codec = _PermitsCodec()

    @staticmethod
    def expires_us(state: State) -> int:
        """When the last of them has ended."""
        return int(state[-1][0])


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

    def out(self, state: State | None, now_us: int) -> tuple[Held, ...]:
        """Return the permits that are out; one that ends later than any can (a clock was set back) is cut."""
        latest_us = now_us + self.hold_us
        return tuple((min(held[0], latest_us), held[1]) for held in state or () if held[0] > now_us)


class PermitOperation(ABC):
    """What taking, giving back and renewing have in common: a permit, or several to give back."""

    __slots__ = ("_permits", "_room", "_texts")

    script = Script("permits", partial(lua, "permits"), joins=True)
    followed = False
    fields = 2
    verb = ""

    def __init__(self, room: Room, *permits: Permit) -> None:
        self._room = room
        self._permits = permits
        self._texts = [str(permit) for permit in permits]

    @property
    def parts(self) -> list[Part]:
        """The permits of the limit."""
        return [self._room.part]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], Taken]:
        """Strike the permits whose time is over, and do it."""
        state = states[0]
        out = self._room.out(state, now_us)
        new, taken = self._done(out, now_us)
        if new == (state or ()):
            return [None], taken
        return [tuple(sorted(new)) or GONE], taken

    @abstractmethod
    def _done(self, out: tuple[Held, ...], now_us: int) -> tuple[tuple[Held, ...], Taken]:
        """Return the permits that are out afterwards, and the reply."""

    def _held(self, out: tuple[Held, ...], now_us: int) -> tuple[tuple[Held, ...], Taken]:
        return (*self._others(out), (now_us + self._room.hold_us, self._texts[0])), Taken(True)

    def _others(self, out: tuple[Held, ...]) -> tuple[Held, ...]:
        return tuple(held for held in out if held[1] not in self._texts)

    def key_names(self) -> tuple[str]:
        """The permits of the limit."""
        return (key_text(SPACE, self._room.name),)

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
        """Read two numbers; an error in place of the first names the key it came from."""
        done, wait_us = raw
        if not isinstance(done, int):
            [key] = self.key_names()
            raise named(RuntimeError(done.decode("utf-8", "replace")), repr(key), repr(key))
        return Taken(done == 1, int(wait_us))


class TakePermit(PermitOperation):
    """Take a permit, if there is one."""

    __slots__ = ()

    verb = "take"

    def _done(self, out: tuple[Held, ...], now_us: int) -> tuple[tuple[Held, ...], Taken]:
        others = self._others(out)  # who asks again may have been granted it, and not have heard
        if len(others) < self._room.most:
            return self._held(others, now_us)
        return others, Taken(False, min(others)[0] - now_us if others else self._room.hold_us)

    def undo(self, reply: Taken) -> GivePermit | None:
        """Give it back for a caller that is gone."""
        return GivePermit(self._room, *self._permits) if reply.done else None


class GivePermit(PermitOperation):
    """Give permits back; one that has ended already is somebody else's by now."""

    __slots__ = ()

    verb = "give"

    def _done(self, out: tuple[Held, ...], now_us: int) -> tuple[tuple[Held, ...], Taken]:
        others = self._others(out)
        return others, Taken(len(others) < len(out))


class RenewPermit(PermitOperation):
    """Hold a permit for as long again, from now; one that has ended cannot be."""

    __slots__ = ()

    verb = "renew"

    def _done(self, out: tuple[Held, ...], now_us: int) -> tuple[tuple[Held, ...], Taken]:
        if self._others(out) == out:
            return out, Taken(False)
        return self._held(out, now_us)


class Holders:
    """List who holds permits, and for how long at the most."""

    __slots__ = ("_room",)

    script = Script("holders", partial(lua, "holders"))
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
