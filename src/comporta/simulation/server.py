"""The simulated server: it holds the state of the fleet, and fails.

It has a clock of its own, and every way to fail that a Redis server has: it crashes and comes back with its
data, with an old snapshot or empty; it hangs and carries out later what it was sent meanwhile; it refuses
writes; its clock jumps. Its engine (``server_engine.py``) carries out the operations.

This module does not know who sends the operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from comporta.simulation.server_engine import ServerEngine
from comporta.simulation.virtual_time import Scheduler
from comporta.simulation.worker import UNIX_START_NS
from comporta.stores.base import Operation

_SNAPSHOT_NS = 500_000_000
_SNAPSHOTS_MAX = 20

_REFUSALS: dict[str, tuple[type[ResponseError], str]] = {
    "full": (OutOfMemoryError, "OOM command not allowed when used memory > 'maxmemory'."),
    "read_only": (ReadOnlyError, "READONLY You can't write against a read only replica."),
}

Observer = Callable[[Operation[Any], str, Any, bool], None]
"""Gets each operation, the name of its worker, the reply, and whether the data changed."""


class ServerConnection(Protocol):
    """The server's end of a connection."""

    def reset(self) -> None:
        """Tell the worker that this end is gone."""


class SimulatedServer:
    """The server. ``generation`` counts its starts: connections of an earlier one are gone."""

    def __init__(self, scheduler: Scheduler, engine: ServerEngine, observe: Observer) -> None:
        self.generation = 0
        self.is_up = True
        self.is_hung = False
        self.refusal = ""
        self.clock_error_us = 0
        self.connections: dict[ServerConnection, None] = {}
        self._engine = engine
        self._snapshots: deque[tuple[int, Any]] = deque(maxlen=_SNAPSHOTS_MAX)
        self._waiting: list[tuple[Callable[[Any], object], Any]] = []
        self._scheduler = scheduler
        self._observe = observe

    def now_us(self) -> int:
        """Return the server's clock."""
        return (UNIX_START_NS + self._scheduler.now_ns) // 1000 + self.clock_error_us

    def call(self, action: Callable[[Any], object], argument: Any) -> None:
        """Run ``action`` on the server, now or when it no longer hangs. A server that is down ignores it."""
        if self.is_hung:
            self._waiting.append((action, argument))
        elif self.is_up:
            action(argument)

    def execute(self, operation: Operation[Any], worker: str) -> Any:
        """Carry out an operation and return its reply."""
        reply, changed = self._engine.apply(operation, self.now_us())
        self._observe(operation, worker, reply, changed)
        return reply

    def refusal_error(self) -> ResponseError | None:
        """Return the error with which the server currently answers every request, if it does."""
        if not self.refusal:
            return None
        error_class, text = _REFUSALS[self.refusal]
        return error_class(text)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space."""
        return self._engine.entries(space, self.now_us())

    def live_permits(self, name: str) -> list[str]:
        """Return the permits of a limit that are in use, each as ``id owner``."""
        return self._engine.live_permits(name, self.now_us())

    def hang(self) -> None:
        """Stop the server's process; what arrives waits in its sockets."""
        self.is_hung = True

    def resume(self) -> None:
        """Let the server continue, first with everything that arrived meanwhile."""
        self.is_hung = False
        waiting, self._waiting = self._waiting, []
        for action, argument in waiting:
            self.call(action, argument)

    def crash(self) -> None:
        """End the server's process; what waits in its sockets is lost, and its host resets connections."""
        self.is_up = self.is_hung = False
        self._waiting.clear()
        connections, self.connections = self.connections, {}
        for connection in connections:
            connection.reset()

    def restart(self, memory: str, snapshot_age_ns: int = 0) -> None:
        """Start the server again, with its data (``kept``), an old snapshot (``old``) or none (``empty``)."""
        self.generation += 1
        self.is_up = True
        if memory == "empty":
            self._engine.restore(None)
        elif memory == "old":
            self._load_snapshot(self._scheduler.now_ns - snapshot_age_ns)

    def keep_snapshots(self, _: object = None) -> None:
        """Save a snapshot twice a second, so that the server can restart from an old one."""
        self._snapshots.append((self._scheduler.now_ns, self._engine.snapshot()))
        self._scheduler.call_after(_SNAPSHOT_NS, self.keep_snapshots)

    def _load_snapshot(self, moment_ns: int) -> None:
        """Restore the last snapshot before a moment; without one, start empty."""
        snapshots = [snapshot for at_ns, snapshot in self._snapshots if at_ns <= moment_ns]
        self._engine.restore(snapshots[-1] if snapshots else None)
