"""The registry of live workers, as operations: register, remove, list, and rejoin after an outage.

Every process that uses a shared state records a heartbeat in the registry every 0.9 s. A worker that was
silent for ``DEAD_SECONDS`` counts as dead; a worker that exits normally removes itself. The number of workers
determines what share of a limit each may use during an outage: a count that is too high costs throughput, and
a count that is too low exceeds the limit.

This module does not depend on threads or stores. Lua version: ``worker_registry.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any, NamedTuple, Self, cast

from comporta.clock import to_us
from comporta.runtime import RUNTIME
from comporta.stores.base import GONE, Operation, R, Script, State, StateKey
from comporta.stores.failover.barrier import (
    BARRIER_TTL_US,
    GRACE_US,
    INTERRUPTED_US,
    LATE_US,
    LEAD_US,
    UNKNOWN_EPOCH,
    Barrier,
    RejoinMoment,
    RejoinRequest,
)
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, VALUE_BYTES_MAX

REGISTRY_KEY = "comporta_workers"
"""The key of the registry: on a server a sorted set of workers, by the time of their last heartbeat."""

DEPARTURES = "comporta_departures"
"""The space of records about workers that have ended, by their ``member``: the worker itself writes ``LEFT``,
and the fleet status then replaces it."""

DEPARTURE_TTL_SECONDS = 300.0
LEFT = b"left"

REJOIN_SPACE = "comporta_rejoin"
"""The space of the barrier at which the fleet rejoins after an outage."""

REJOIN_SECONDS = 0.6
"""How long the barrier waits for workers that do not come, in addition to the time for connecting."""

HEARTBEAT_SECONDS = 0.9
"""How often a worker registers and reads changes, so that all workers know an override within 1 s."""

DEAD_SECONDS = 3.0
_DEAD_US = to_us(DEAD_SECONDS)

_ENTRY = Struct("<IIQQ")

BARRIER = StateKey(REJOIN_SPACE, REGISTRY_KEY, RECORD)
"""The barrier; its name puts it into the registry's slot of a cluster."""

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
        token = int.from_bytes(RUNTIME.random_bytes(8), "little")
        return cls(RUNTIME.host(), RUNTIME.pid(), int(RUNTIME.unix_time()), token)

    def __str__(self) -> str:
        """Return the text under which a server lists the worker."""
        return f"{self.host}:{self.pid}:{self.started}:{self.token:016x}"

    @property
    def member(self) -> str:
        """The text under which a barrier lists the worker."""
        return f"{self.token:016x}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``str`` wrote."""
        host, pid, started, token = text.rsplit(":", 3)
        return cls(host, int(pid), int(started), int(token, 16))


class LiveWorker(NamedTuple):
    """A worker and the age of its last heartbeat in seconds."""

    worker: Worker
    age: float


class _RegistryOperation(Operation[R]):
    """Base of the operations on the registry."""

    __slots__ = ("_worker",)

    script = Script("workers", partial(lua, "stores/failover/worker_registry"))
    state_keys: Sequence[StateKey] = (StateKey(REGISTRY_KEY, "", RECORD),)
    command = ""

    def __init__(self, worker: Worker | None = None) -> None:
        self._worker = worker

    @property
    def worker(self) -> Worker:
        """The worker that the operation concerns."""
        return cast(Worker, self._worker)

    def script_args(self) -> list[int | str | bytes]:
        """The command, the worker, and after how many microseconds a worker counts as dead."""
        return [self.command, str(self._worker or ""), _DEAD_US]


class Pulse(NamedTuple):
    """The reply to a heartbeat: how many workers are alive, the epoch, and whether its barrier is running."""

    worker_count: int
    epoch: int
    is_rejoining: bool


class RecordHeartbeat(_RegistryOperation[Pulse]):
    """Record that a worker is alive; a worker that uses the store also confirms the ``epoch`` it knows."""

    __slots__ = ("_epoch",)

    command = "beat"
    state_keys: Sequence[StateKey] = (StateKey(REGISTRY_KEY, "", RECORD), BARRIER)

    def __init__(self, worker: Worker, epoch: int = UNKNOWN_EPOCH) -> None:
        super().__init__(worker)
        self._epoch = epoch

    def script_args(self) -> list[int | str | bytes]:
        """The arguments of the registry, the epoch, and how far ahead the moment of a full barrier is."""
        return [*super().script_args(), self._epoch, LEAD_US]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Pulse]:
        """Write the time of the heartbeat, drop dead workers, and confirm the epoch."""
        worker = self.worker
        alive = _live_workers(states[0], now_us)
        if worker in alive or len(alive) < WORKERS_MAX:
            alive[worker] = now_us
        barrier_state, pulse = self.confirm(states[1], len(alive), now_us)
        return [_registry_state(alive, now_us), barrier_state], pulse

    def confirm(
        self, barrier_state: State | None, worker_count: int, now_us: int
    ) -> tuple[State | None, Pulse]:
        """Confirm the epoch; returns the new state of the barrier (``None``: unchanged) and the reply."""
        before = Barrier.from_state(barrier_state)
        if not before.is_running:  # nearly always
            return None, Pulse(worker_count, before.epoch, is_rejoining=False)
        barrier = before.confirm(self.worker.member, self._epoch, now_us)
        pulse = Pulse(worker_count, barrier.epoch, barrier.is_running)
        return None if barrier == before else barrier.to_state(now_us), pulse

    @staticmethod
    def parse(raw: Sequence[Any]) -> Pulse:
        """Read the three numbers of the reply."""
        worker_count, epoch, is_rejoining = map(int, raw)
        return Pulse(worker_count, epoch, bool(is_rejoining))


class RemoveWorker(_RegistryOperation[int]):
    """Remove a worker that exits; returns how many workers are left."""

    __slots__ = ()

    command = "leave"

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Drop the worker and the dead ones."""
        alive = _live_workers(states[0], now_us)
        alive.pop(self.worker, None)
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


class ScheduleRejoin(_RegistryOperation[RejoinMoment]):
    """Join the barrier at which the fleet rejoins, or begin one; returns its epoch and the time left.

    A worker repeats it until the moment has come, which shows that no other worker is missing.
    """

    __slots__ = ("_request",)

    command = "rejoin"
    state_keys: Sequence[StateKey] = (BARRIER,)

    def __init__(self, worker: Worker, request: RejoinRequest) -> None:
        super().__init__(worker)
        self._request = request

    def script_args(self) -> list[int | str | bytes]:
        """The command, the worker, and the numbers of the request."""
        _, lost_epoch, worker_count, barrier_us, used_epoch, waiting_epoch = self._request
        times = LEAD_US, worker_count, BARRIER_TTL_US // 1000, INTERRUPTED_US
        numbers = barrier_us, lost_epoch, *times, GRACE_US, LATE_US, used_epoch, waiting_epoch
        return [self.command, str(self._worker), *numbers]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], RejoinMoment]:
        """Join or begin a barrier."""
        before = Barrier.from_state(states[0])
        barrier, moment = before.join(self._request, now_us)
        return [None if barrier == before else barrier.to_state(now_us)], moment

    @staticmethod
    def parse(raw: Sequence[Any]) -> RejoinMoment:
        """Read the two numbers of the reply."""
        epoch, left_us = map(int, raw)
        return RejoinMoment(epoch, left_us)


def _parse_live_worker(text: bytes, age_us: int) -> LiveWorker | None:
    """Parse an entry of the registry; ``None`` if it is not a worker."""
    try:
        return LiveWorker(Worker.parse(text.decode("utf-8", "replace")), age_us / 1e6)
    except ValueError:
        return None


def _live_workers(state: State | None, now_us: int) -> dict[Worker, int]:
    """Return the live workers; a heartbeat from the future (a clock was set back) counts from now."""
    if state is None:
        return {}
    workers, host = {}, RUNTIME.host()
    for pid, started, token, last_us in _ENTRY.iter_unpack(state[1]):
        if now_us - last_us < _DEAD_US:
            workers[Worker(host, pid, started, token)] = min(last_us, now_us)
    return workers


def _registry_state(alive: dict[Worker, int], now_us: int) -> State:
    entries = (_ENTRY.pack(w.pid, w.started, w.token, last_us) for w, last_us in alive.items())
    return now_us + _DEAD_US, b"".join(entries)
