"""A TCP proxy that injects faults into the connections between a client and a server.

It runs in a thread of this process, so blocking and asynchronous tests can use it alike. Every method returns
once its effect is in force.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from comporta.testing.faults import Direction, DirectionOption, FaultKind, PlannedFault, ProxyFaults
from comporta.testing.lifecycle import Lifecycle
from comporta.testing.programs import free_port
from comporta.testing.proxy_connection import ProxyConnection, reset_socket
from comporta.testing.redis_server import HOST, Server

T = TypeVar("T")

_CALL_SECONDS = 10.0
_BACKLOG = 1024
_GARBAGE = b"?this is no reply\r\n"


class FaultProxy(Lifecycle):
    """A TCP proxy with switches for faults, which affect open and new connections.

    It listens on ``port`` and forwards to ``target``; ``url`` is what clients connect to.

    ::

        with Server() as server, FaultProxy.to(server) as proxy:
            limiter = RedisLimiter("10/s", proxy.url)
            proxy.delay(0.2)

    Some faults last until :meth:`heal`: ``delay``, ``hang``, ``blackhole``, ``slice_packets``,
    ``limit_bandwidth``, ``refuse_connections``, ``reset_on_accept``. ``direction`` is ``"requests"``,
    ``"replies"`` or ``"both"``. Others apply to the next ``count`` replies or requests: ``lose_replies``,
    ``truncate_replies``, ``stall_replies``, ``garble_replies``, ``truncate_requests``. With ``matching``
    they apply only to requests that contain this text, so that the commands a client sends when it connects
    do not count.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="comporta-proxy", daemon=True)
        self._faults = ProxyFaults()
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    @classmethod
    def to(cls, server: Server) -> Self:
        """Return a proxy for a server. Its ``url`` differs from the server's only in the port."""
        proxy = cls(HOST, server.port)
        proxy.url = server.url.replace(f"{HOST}:{server.port}", f"{HOST}:{proxy.port}")
        return proxy

    # faults that last ---------------------------------------------------------------------------------

    def delay(self, seconds: float, jitter: float = 0.0, direction: DirectionOption = "both") -> None:
        """Delay every byte by ``seconds`` plus up to ``jitter`` seconds, and keep the order."""
        _check_min("seconds", seconds, 0)
        _check_min("jitter", jitter, 0)
        self._set_conditions(direction, latency_s=seconds, jitter_s=jitter)

    def hang(self, direction: DirectionOption = "both") -> None:
        """Read bytes and hold them, until ``release``, ``drop`` or ``heal``."""
        self._set_conditions(direction, hang=True)

    def release(self) -> None:
        """Forward the bytes that ``hang`` holds, and stop hanging."""
        self._set_conditions("both", hang=False)

    def drop(self) -> None:
        """Discard the bytes that ``hang`` holds, and stop hanging."""
        self._call_in_loop(self._faults.drop_held_bytes)

    def blackhole(self, direction: DirectionOption = "both") -> None:
        """Read bytes and discard them. Until ``heal``, neither side sees that the other closed."""
        self._set_conditions(direction, blackhole=True)

    def slice_packets(self, size: int = 1, direction: DirectionOption = "both") -> None:
        """Send packets of at most ``size`` bytes."""
        _check_min("size", size, 1)
        self._set_conditions(direction, packet_bytes=size)

    def limit_bandwidth(self, bytes_per_second: float, direction: DirectionOption = "both") -> None:
        """Send at most this many bytes a second on each connection."""
        _check_min("bytes_per_second", bytes_per_second, 1)
        self._set_conditions(direction, bytes_per_second=bytes_per_second)

    def refuse_connections(self) -> None:
        """Refuse new connections, as if the server were not running. Open connections continue."""
        self._run_in_loop(self._stop_listening())

    def reset_on_accept(self) -> None:
        """Accept new connections and reset them immediately. Open connections continue."""

        def switch() -> None:
            self._faults.reset_on_accept = True

        self._call_in_loop(switch)

    # faults that are counted --------------------------------------------------------------------------

    def lose_replies(self, count: int = 1, matching: str | bytes = b"") -> None:
        """Let the server execute the next requests, discard the replies and reset the connections."""
        self._plan_fault("replies", "lose", count, matching, after=0)

    def truncate_replies(self, count: int = 1, after: int | None = None, matching: str | bytes = b"") -> None:
        """Reset connections in the middle of the next replies: after ``after`` bytes, or half of them."""
        self._plan_fault("replies", "truncate", count, matching, after=after)

    def stall_replies(self, count: int = 1, after: int | None = None, matching: str | bytes = b"") -> None:
        """Forward ``after`` bytes of the next replies, or half, then nothing more on those connections."""
        self._plan_fault("replies", "stall", count, matching, after=after)

    def garble_replies(self, count: int = 1, garbage: bytes = _GARBAGE, matching: str | bytes = b"") -> None:
        """Replace the next replies with garbage. The connections stay open."""
        self._plan_fault("replies", "garble", count, matching, after=0, garbage=garbage)

    def truncate_requests(
        self, count: int = 1, after: int | None = None, matching: str | bytes = b""
    ) -> None:
        """Forward ``after`` bytes of the next requests, or half of them, and reset the connections."""
        self._plan_fault("requests", "truncate", count, matching, after=after)

    def reset_connections(self) -> None:
        """Reset all open connections."""
        self._run_in_loop(self._reset_all())

    def heal(self) -> None:
        """Switch all faults off and forward the bytes held so far. Lost bytes stay lost."""
        self._call_in_loop(self._faults.heal)
        self._run_in_loop(self._listen())

    # counters -----------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """The number of connections accepted so far."""
        return self._faults.connections

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return len(self._connection_tasks)

    @property
    def request_bytes(self) -> int:
        """The number of bytes forwarded to the server."""
        return self._faults.forwarded_bytes["requests"]

    @property
    def reply_bytes(self) -> int:
        """The number of bytes forwarded to clients."""
        return self._faults.forwarded_bytes["replies"]

    @property
    def replies_lost(self) -> int:
        """The number of replies that ``lose_replies`` has discarded so far."""
        return self._faults.replies_lost

    @property
    def pending_faults(self) -> int:
        """The number of counted faults that have not happened yet."""
        return self._call_in_loop(lambda: sum(fault.remaining for fault in self._faults.planned))

    # lifecycle ----------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start listening and return the proxy."""
        self._thread.start()
        try:
            self._run_in_loop(self._listen())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Reset open connections and stop listening. A closed proxy cannot be started again."""
        if self._thread.is_alive():
            self._run_in_loop(self._stop_listening())
            self._run_in_loop(self._reset_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    # on the proxy's thread ----------------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            with contextlib.suppress(OSError):  # not every system supports this
                listener.shutdown(socket.SHUT_RDWR)  # a forked child may hold the listener open as well
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        """Accept a connection and start its task in one step, so that a reset in between cannot miss it."""
        try:
            client, _ = listener.accept()
        except OSError:  # the client is gone, or too many files are open: the loop calls this again
            return
        client.setblocking(False)
        self._faults.connections += 1
        if self._faults.reset_on_accept:
            reset_socket(client)
            return
        task = self._loop.create_task(ProxyConnection(client, self.target, self._faults).run())
        self._connection_tasks.add(task)
        task.add_done_callback(self._connection_tasks.discard)
        task.add_done_callback(lambda _: reset_socket(client))  # cancelled before its first step, it does not

    async def _reset_all(self) -> None:
        tasks = list(self._connection_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # from other threads -------------------------------------------------------------------------------

    def _set_conditions(self, direction: DirectionOption, **changes: float | bool) -> None:
        if direction not in ("both", "requests", "replies"):
            raise ValueError(f"direction must be 'both', 'requests' or 'replies', got {direction!r}")
        self._call_in_loop(lambda: self._faults.set_conditions(direction, **changes))

    def _plan_fault(
        self,
        direction: Direction,
        kind: FaultKind,
        count: int,
        matching: str | bytes,
        *,
        after: int | None,
        garbage: bytes = b"",
    ) -> None:
        _check_min("count", count, 1)
        _check_min("after", after or 0, 0)
        text = matching.encode() if isinstance(matching, str) else matching
        fault = PlannedFault(direction, kind, count, text, after, garbage)
        self._call_in_loop(lambda: self._faults.planned.append(fault))

    def _call_in_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self._run_in_loop(call())

    def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the proxy is not running: start it, or use it in a with statement")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)


def _check_min(name: str, value: float, minimum: float) -> None:
    if value < minimum:
        raise ValueError(f"{name} must be {minimum} or more, got {value}")
