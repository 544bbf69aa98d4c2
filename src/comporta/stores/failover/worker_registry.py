"""The registry of live workers, as operations: register, remove, list, and schedule a rejoin.

Every process that uses a shared state records a heartbeat in the registry once a second. A worker that was
silent for ``DEAD_SECONDS`` counts as dead; one that exits normally removes itself. The number of workers
decides what share of a limit each may use during an outage: a count that is too high costs throughput, one
that is too low exceeds the limit.

This module knows no threads and no stores. Lua twin: ``worker_registry.lua``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cache, partial
from struct import Struct
from typing import Any, NamedTuple, Self, cast

from comporta.clock import to_us
from comporta.stores.base import GONE, Operation, R, Script, State, StateKey
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, VALUE_BYTES_MAX

REGISTRY_KEY = "comporta_workers"
"""The key of the registry: on a server a sorted set of workers, by the time of their last heartbeat."""

REJOIN_KEY = "comporta_return"
"""The key of the moment at which the fleet rejoins after an outage."""

REJOIN_SECONDS = 0.6
REJOIN_US = to_us(REJOIN_SECONDS)

HEARTBEAT_SECONDS = 1.0
DEAD_SECONDS = 3.0
_DEAD_US = to_us(DEAD_SECONDS)

_HOST_CHARS_MAX = 64
_ENTRY = Struct("<IIQQ")

WORKERS_MAX = VALUE_BYTES_MAX // _ENTRY.size
"""How many workers a local engine lists and counts; a server has no such limit."""


class Worker(NamedTuple):
    """The identity of one process: its host, pid, start time (Unix seconds) and a random token."""

    host: str
    pid: int
    started: int
    token: int

    @classmethod
    def new(cls) -> Self:
        """Return a new identity for this process; a forked child needs one of its own."""
        return cls(_host(), os.getpid(), int(time.time()), int.from_bytes(os.urandom(8), "little"))

    def __str__(self) -> str:
        """Return the text under which a server lists the worker."""
        return f"{self.host}:{self.pid}:{self.started}:{self.token:016x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote."""
        host, pid, started, token = text.rsplit(":", 3)
        return cls(host, int(pid), int(started), int(token, 16))


class LiveWorker(NamedTuple):
    """A worker and the age of its last heartbeat in seconds."""

    worker: Worker
    age: float


@cache
def _host() -> str:
    return os.uname().nodename[:_HOST_CHARS_MAX] or "localhost"


class _RegistryOperation(Operation[R]):
    """Base of the operations on the registry."""

    __slots__ = ("_worker",)

    script = Script("workers", partial(lua, "stores/failover/worker_registry"))
    state_keys: Sequence[StateKey] = (StateKey(REGISTRY_KEY, "", RECORD),)
    command = ""

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker

    def script_args(self) -> list[int | str | bytes]:
        """The command, the worker, and after how many microseconds a worker counts as dead."""
        return [self.command, str(self._worker or ""), _DEAD_US]


class RecordHeartbeat(_RegistryOperation[int]):
    """Record that a worker is alive; returns how many workers are."""

    __slots__ = ()

    command = "beat"

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Write the time of the heartbeat and drop dead workers."""
        alive = _live_workers(states[0], now_us)
        if self._worker is not None and (self._worker in alive or len(alive) < WORKERS_MAX):
            alive[self._worker] = now_us
        return [_registry_state(alive, now_us)], len(alive)

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """Read the single number of the reply."""
        return int(raw[0])


class RemoveWorker(_RegistryOperation[int]):
    """Remove a worker that exits; returns how many workers are left."""

    __slots__ = ()

    command = "leave"

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Drop the worker and the dead ones."""
        alive = _live_workers(states[0], now_us)
        alive.pop(cast(Worker, self._worker), None)
        if states[0] is None:
            return [None], 0
        return [_registry_state(alive, now_us) if alive else GONE], len(alive)

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """Read the single number of the reply."""
        return int(raw[0])


class ListWorkers(_RegistryOperation[list[LiveWorker]]):
    """List the live workers with the ages of their last heartbeats."""

    __slots__ = ()

    command = "list"

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], list[LiveWorker]]:
        """Read the registry without changing it."""
        alive = _live_workers(states[0], now_us)
        return [None], [LiveWorker(worker, (now_us - last_us) / 1e6) for worker, last_us in alive.items()]

    @staticmethod
    def parse(raw: Sequence[Any]) -> list[LiveWorker]:
        """Read workers and their ages in microseconds, in turns; entries that are not workers are skipped."""
        pairs = zip(raw[::2], raw[1::2], strict=True)
        workers = (_parse_live_worker(text, int(age_us)) for text, age_us in pairs)
        return [worker for worker in workers if worker is not None]


class ScheduleRejoin(_RegistryOperation[int]):
    """Set, or learn, the moment at which the fleet rejoins after an outage; returns the microseconds left.

    The first worker that finds the store reachable sets the moment 0.6 s ahead, so that the others find the
    store reachable too and all report what they granted before any of them uses it again. A worker that comes
    after the moment gets a number below 0.
    """

    __slots__ = ()

    command = "rejoin"
    state_keys: Sequence[StateKey] = (StateKey(REJOIN_KEY, "", RECORD),)

    def script_args(self) -> list[int | str | bytes]:
        """The command, no worker, and how many microseconds ahead to set the moment."""
        return [self.command, "", REJOIN_US]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Set the moment, unless another worker has just set it."""
        if states[0] is not None:
            moment_us = int(states[0][1])
            if abs(moment_us - now_us) <= REJOIN_US:
                return [None], moment_us - now_us
        return [(now_us + 2 * REJOIN_US, b"%d" % (now_us + REJOIN_US))], REJOIN_US

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """Read the single number of the reply."""
        return int(raw[0])


def _parse_live_worker(text: bytes, age_us: int) -> LiveWorker | None:
    """Read an entry of the registry; ``None`` if it is not a worker's."""
    try:
        return LiveWorker(Worker.parse(text.decode("utf-8", "replace")), age_us / 1e6)
    except ValueError:
        return None


def _live_workers(state: State | None, now_us: int) -> dict[Worker, int]:
    """Return the live workers; a heartbeat from the future (a clock was set back) counts from now."""
    if state is None:
        return {}
    workers = {}
    for pid, started, token, last_us in _ENTRY.iter_unpack(state[1]):
        if now_us - last_us < _DEAD_US:
            workers[Worker(_host(), pid, started, token)] = min(last_us, now_us)
    return workers


def _registry_state(alive: dict[Worker, int], now_us: int) -> State:
    entries = (_ENTRY.pack(w.pid, w.started, w.token, last_us) for w, last_us in alive.items())
    return now_us + _DEAD_US, b"".join(entries)
