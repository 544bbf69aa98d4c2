"""One simulated connection between a worker and the server, with the interface of a Redis connection.

The pool of blocking callers (``stores/redis/pool.py``) runs unchanged on these connections: at a deadline,
with a stale connection or while many threads connect, it does what it does in production.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from comporta.simulation.network import REPLIES, REQUESTS, Network
from comporta.simulation.server import SimulatedServer
from comporta.simulation.virtual_time import NANOSECONDS, Scheduler, SimulatedThread
from comporta.simulation.worker import SimulatedWorker
from comporta.stores.base import Operation

HANDSHAKE: Final = "handshake"
"""The message that arrives on a connection when it is ready."""

_RESET = "reset"


class Reply(NamedTuple):
    """The replies to the operations of one request, and when they were decided."""

    request: list[Operation[Any]]
    values: list[Any]
    decided_ns: int


class Endpoints(NamedTuple):
    """The two ends of a connection."""

    scheduler: Scheduler
    network: Network
    server: SimulatedServer
    worker: SimulatedWorker

    @property
    def is_clear(self) -> bool:
        """Whether a message would arrive now without further delay, and be carried out."""
        _, network, server, worker = self
        if network.extra_ns or server.is_hung or server.refusal or not server.is_up:
            return False
        return network.links[worker.index].is_clear


class SimulatedConnection:
    """A connection. ``on_message`` is called when something has arrived, in place of waking a thread.

    ``is_half_open``: the server no longer knows it, and nothing that is sent on it ever arrives.
    """

    def __init__(self, ends: Endpoints) -> None:
        self.ends = ends
        self.is_closed = False
        self.is_half_open = False
        self.generation = ends.server.generation
        self.arrived: deque[Any] = deque()
        self.on_message: Callable[[], object] | None = None
        self._reader: SimulatedThread | None = None
        self._deadline_ns = 0

    def set_deadline(self, began_ns: int, seconds: float) -> None:
        """Make everything from now on end within ``seconds`` of ``began_ns``, by the worker's clock."""
        worker = self.ends.worker
        left_ns = began_ns + round(seconds * NANOSECONDS) - worker.monotonic_ns()
        self._deadline_ns = self.ends.scheduler.now_ns + worker.local_delay_ns(left_ns)

    def begin(self) -> None:
        """Start to connect: the kernel of the server's host answers, then the server itself."""
        self._send(self._accept, None)

    def connect(self) -> None:
        """Connect, and wait for it; ``ConnectionError`` or ``TimeoutError`` if that fails."""
        self.begin()
        self.read_response()

    def send_packed_command(self, command: list[Any], check_health: bool) -> None:
        """Send the operations of one request."""
        self._send(self._receive, command[0])

    def read_response(self) -> Any:
        """Return the next reply; ``TimeoutError`` if it does not arrive by the deadline."""
        scheduler = self.ends.scheduler
        self._reader = scheduler.current
        try:
            while not self.arrived:
                if scheduler.now_ns >= self._deadline_ns:
                    raise TimeoutError("timed out")
                scheduler.park(self._deadline_ns)
        finally:
            self._reader = None
        return self.take()

    def take(self) -> Any:
        """Return the message that arrived first, or raise it if it is an error."""
        message = self.arrived.popleft()
        if message is _RESET:
            self.is_closed = True
            raise ConnectionError("Connection reset by peer")
        if isinstance(message, Exception):
            raise message
        return message

    def can_read(self, timeout: float = 0) -> bool:
        """Return whether something arrived that no caller waited for, such as the end of the connection."""
        return bool(self.arrived)

    def disconnect(self) -> None:
        """Close the connection; what was sent on it may still arrive."""
        self.is_closed = True
        self.ends.server.connections.pop(self, None)

    def reset(self) -> None:
        """Tell the worker that the server's end of the connection is gone."""
        if not self.is_half_open:
            self._answer(_RESET)

    def _send(self, deliver: Callable[[Any], object], message: Any) -> None:
        if self.ends.worker.is_dead or self.is_half_open:
            return
        self.ends.network.send(self.ends.worker.index, REQUESTS, deliver, message)

    def _answer(self, message: Any) -> None:
        self.ends.network.send(self.ends.worker.index, REPLIES, self._arrive, message)

    def _accept(self, _: None) -> None:
        """The server's host gets the request for a connection; a port without a server refuses it."""
        server = self.ends.server
        if not server.is_up:
            self._answer(ConnectionRefusedError("Connection refused"))
            return
        self.generation = server.generation
        server.connections[self] = None
        server.call(self._answer, HANDSHAKE)

    def _receive(self, operations: list[Operation[Any]]) -> None:
        server = self.ends.server
        if self.generation != server.generation or not server.is_up:
            self.reset()
        else:
            server.call(self._execute, operations)
            self.ends.network.duplicate(self._receive_again, operations)

    def _receive_again(self, operations: list[Operation[Any]]) -> None:
        """Get a request that a proxy has sent again; the proxy drops the second reply."""
        if self.generation == self.ends.server.generation:
            self.ends.server.call(self._execute_again, operations)

    def _execute_again(self, operations: list[Operation[Any]]) -> None:
        if self.ends.server.refusal_error() is None:
            self._apply(operations)

    def _execute(self, operations: list[Operation[Any]]) -> None:
        """Carry out a request, even if the worker has closed the connection or ended meanwhile."""
        server = self.ends.server
        if self.generation != server.generation:
            return
        refusal = server.refusal_error()
        if refusal is not None:
            self._answer(refusal)
            return
        values = self._apply(operations)
        self._answer(Reply(operations, values, self.ends.scheduler.now_ns))

    def _apply(self, operations: list[Operation[Any]]) -> list[Any]:
        """Carry out the operations of a request; returns their replies."""
        scheduler, _, server, worker = self.ends
        scheduler.acting_for = worker
        try:
            return [server.execute(operation, worker.name) for operation in operations]
        finally:
            scheduler.acting_for = None

    def _arrive(self, message: Any) -> None:
        if self.is_closed or self.ends.worker.is_dead:
            return
        self.arrived.append(message)
        if self.on_message is not None:
            self.on_message()
        elif self._reader is not None:
            self._reader.resume(self._reader.ticket)
