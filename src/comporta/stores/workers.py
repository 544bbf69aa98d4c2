"""Who shares a state: every process that uses it says so once a second.

A worker that was silent for ``DEAD_SECONDS`` is taken for dead; one that ends in good order says so. How many
there are decides what share of a limit each may use when the shared state is out of reach, so a count that is
too high costs throughput and one that is too low costs the limit.

Twin: ``workers.lua``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cache, partial
from struct import Struct
from typing import Any, NamedTuple, Self, cast

from comporta.clock import to_us
from comporta.stores.base import GONE, Part, Script, State
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, VALUE_BYTES_MAX

WORKERS = "comporta_workers"
"""The key of the registry: on a server a sorted set of workers by the time of their last sign of life."""

RETURN = "comporta_return"
"""The key under which the moment is kept at which a fleet comes back together."""

GATHER_SECONDS = 0.6
GATHER_US = to_us(GATHER_SECONDS)

BEAT_SECONDS = 1.0
DEAD_SECONDS = 3.0
_DEAD_US = to_us(DEAD_SECONDS)

_HOST_CHARS_MAX = 64
_ENTRY = Struct("<IIQQ")

WORKERS_MAX = VALUE_BYTES_MAX // _ENTRY.size
"""How many a local state lists and counts; a server has no such limit."""


class Worker(NamedTuple):
    """One process: where it runs, since when (Unix seconds), and a number that no other has."""

    host: str
    pid: int
    started: int
    token: int

    @classmethod
    def here(cls) -> Self:
        """Return a new identity for this process; a forked child takes one of its own."""
        return cls(_host(), os.getpid(), int(time.time()), int.from_bytes(os.urandom(8), "little"))

    def __str__(self) -> str:
        """Return it as it is listed on a server."""
        return f"{self.host}:{self.pid}:{self.started}:{self.token:016x}"

    @classmethod
    def read(cls, text: str) -> Self:
        """Read back what ``str`` wrote."""
        host, pid, started, token = text.rsplit(":", 3)
        return cls(host, int(pid), int(started), int(token, 16))


class Sign(NamedTuple):
    """A worker and how long ago it was last heard of."""

    worker: Worker
    age: float


@cache
def _host() -> str:
    return os.uname().nodename[:_HOST_CHARS_MAX] or "localhost"


class _RegistryOperation:
    """What signing, leaving and listing have in common."""

    __slots__ = ("_worker",)

    script = Script("workers", partial(lua, "stores", "workers"))
    parts: Sequence[Part] = (Part(WORKERS, "", RECORD),)
    verb = ""
    followed = False
    fields = 1

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker

    @staticmethod
    def key_names() -> tuple[str]:
        """The registry."""
        return (WORKERS,)

    def arguments(self) -> list[int | str | bytes]:
        """Verb, worker, and after how many microseconds one is dead."""
        return [self.verb, str(self._worker or ""), _DEAD_US]

    @staticmethod
    def undo(reply: object) -> None:
        """Who is here is here."""

    @staticmethod
    def alone(outage: object) -> None:
        """Nobody can be counted from afar."""


class Beat(_RegistryOperation):
    """Give a sign of life; returns how many workers are alive."""

    __slots__ = ()

    verb = "beat"

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Write down the moment, and strike the dead."""
        alive = _alive(states[0], now_us)
        if self._worker is not None and (self._worker in alive or len(alive) < WORKERS_MAX):
            alive[self._worker] = now_us
        return [_written(alive, now_us)], len(alive)

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """One number."""
        return int(raw[0])


class Leave(_RegistryOperation):
    """End in good order; returns how many workers are left."""

    __slots__ = ()

    verb = "leave"

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Strike the worker."""
        alive = _alive(states[0], now_us)
        alive.pop(cast(Worker, self._worker), None)
        if states[0] is None:
            return [None], 0
        return [_written(alive, now_us) if alive else GONE], len(alive)

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """One number."""
        return int(raw[0])


class Roll(_RegistryOperation):
    """List the workers that are alive, and when each was last heard of."""

    __slots__ = ()

    verb = "list"

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], list[Sign]]:
        """Look, change nothing."""
        alive = _alive(states[0], now_us)
        return [None], [Sign(worker, (now_us - last_us) / 1e6) for worker, last_us in alive.items()]

    @staticmethod
    def parse(raw: Sequence[Any]) -> list[Sign]:
        """Worker and age in microseconds, by turns."""
        told = zip(raw[::2], raw[1::2], strict=True)
        return [sign for text, age_us in told if (sign := _sign(text, int(age_us))) is not None]


class Gather(_RegistryOperation):
    """Learn when the fleet comes back together after an outage; returns the microseconds left.

    The first to find the state in order sets the moment a little ahead, so that the others find it in order
    too and all report what they granted before any of them draws on it again. Who comes late is told so by
    a number below 0.
    """

    __slots__ = ()

    verb = "gather"
    parts: Sequence[Part] = (Part(RETURN, "", RECORD),)

    @staticmethod
    def key_names() -> tuple[str]:
        """The moment."""
        return (RETURN,)

    def arguments(self) -> list[int | str | bytes]:
        """Verb, nobody in particular, and how far ahead to set it."""
        return [self.verb, "", GATHER_US]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Set the moment, unless it was set by another just now."""
        if states[0] is not None:
            moment_us = int(states[0][1])
            if abs(moment_us - now_us) <= GATHER_US:
                return [None], moment_us - now_us
        return [(now_us + 2 * GATHER_US, b"%d" % (now_us + GATHER_US))], GATHER_US

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """One number."""
        return int(raw[0])


def _sign(text: bytes, age_us: int) -> Sign | None:
    """Read a sign of life; what somebody else added to the list is none."""
    try:
        return Sign(Worker.read(text.decode("utf-8", "replace")), age_us / 1e6)
    except ValueError:
        return None


def _alive(state: State | None, now_us: int) -> dict[Worker, int]:
    """Return who is alive; a sign from the future (a clock set back) counts from now."""
    if state is None:
        return {}
    found = {}
    for pid, started, token, last_us in _ENTRY.iter_unpack(state[1]):
        if now_us - last_us < _DEAD_US:
            found[Worker(_host(), pid, started, token)] = min(last_us, now_us)
    return found


def _written(alive: dict[Worker, int], now_us: int) -> State:
    entries = (_ENTRY.pack(w.pid, w.started, w.token, last_us) for w, last_us in alive.items())
    return now_us + _DEAD_US, b"".join(entries)
