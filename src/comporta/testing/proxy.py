"""A proxy that spoils connections on purpose, to see what callers make of it.

It runs in a thread of this process, so it serves blocking and awaiting tests alike. Every method returns
when what it says is in effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from comporta.testing.faults import Direction, Faults, Kind, Planned, Way
from comporta.testing.links import Link, reset
from comporta.testing.programs import free_port
from comporta.testing.servers import HOST, Server
from comporta.testing.started import Started

T = TypeVar("T")

_CALL_SECONDS = 10.0
_BACKLOG = 1024
_GARBAGE = b"?this is no reply\r\n"


class FaultProxy(Started):
    """A TCP proxy with switches for faults, for connections that are open as well as for new ones.

    ::

        with Server() as server, FaultProxy.to(server) as proxy:
            limiter = RedisLimiter("10/s", proxy.url)
            proxy.delay(0.2)

    Some faults last until :meth:`heal`: ``delay``, ``hang``, ``blackhole``, ``slice_packets``,
    ``limit_bandwidth``, ``refuse``, ``reset_on_accept``. ``direction`` is ``"requests"``, ``"replies"`` or
    ``"both"``. Others happen to the next ``count`` replies or requests and are over: ``lose_replies``,
    ``cut_replies``, ``stall_replies``, ``garble_replies``, ``cut_requests``. With ``to`` they happen only to
    requests that contain this text, so that what a client says when it connects does not count.
    """

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)
        self.port = free_port()
        self.url = f"redis://{HOST}:{self.port}/0"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="comporta-proxy", daemon=True)
        self._faults = Faults()
        self._links: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    @classmethod
    def to(cls, server: Server) -> Self:
        """Return a proxy to a server, whose ``url`` is the server's but for the port."""
        proxy = cls(HOST, server.port)
        proxy.url = server.url.replace(f"{HOST}:{server.port}", f"{HOST}:{proxy.port}")
        return proxy

    # faults that last ---------------------------------------------------------------------------------

    def delay(self, seconds: float, jitter: float = 0.0, direction: Direction = "both") -> None:
        """Hand every byte on so much later, and up to ``jitter`` seconds more; the order stays."""
        _check("seconds", seconds, 0)
        _check("jitter", jitter, 0)
        self._set(direction, latency_s=seconds, jitter_s=jitter)

    def hang(self, direction: Direction = "both") -> None:
        """Take bytes and hold them, until ``release``, ``drop`` or ``heal``."""
        self._set(direction, hang=True)

    def release(self) -> None:
        """Hand on what ``hang`` held, and hang no longer."""
        self._set("both", hang=False)

    def drop(self) -> None:
        """Throw away what ``hang`` held, and hang no longer."""
        self._call(self._faults.drop)

    def blackhole(self, direction: Direction = "both") -> None:
        """Take bytes and throw them away. That one side closed is hidden from the other until ``heal``."""
        self._set(direction, blackhole=True)

    def slice_packets(self, size: int = 1, direction: Direction = "both") -> None:
        """Send so many bytes in a packet."""
        _check("size", size, 1)
        self._set(direction, packet_bytes=size)

    def limit_bandwidth(self, bytes_per_second: float, direction: Direction = "both") -> None:
        """Send so many bytes a second at the most, on each connection."""
        _check("bytes_per_second", bytes_per_second, 1)
        self._set(direction, bytes_per_second=bytes_per_second)

    def refuse(self) -> None:
        """Refuse new connections, as a server that is not there; those that are open go on."""
        self._await(self._deafen())

    def reset_on_accept(self) -> None:
        """Accept new connections and reset them at once; those that are open go on."""

        def switch() -> None:
            self._faults.reset_on_accept = True

        self._call(switch)

    # faults that are counted --------------------------------------------------------------------------

    def lose_replies(self, count: int = 1, to: str | bytes = b"") -> None:
        """Let the next requests be carried out, swallow their replies and reset their connections."""
        self._plan("replies", "lose", count, to, after=0)

    def cut_replies(self, count: int = 1, after: int | None = None, to: str | bytes = b"") -> None:
        """Reset connections in the middle of the next replies: after so many bytes, or half of them."""
        self._plan("replies", "cut", count, to, after=after)

    def stall_replies(self, count: int = 1, after: int | None = None, to: str | bytes = b"") -> None:
        """Hand on so many bytes of the next replies, or half, then nothing: those connections are dead."""
        self._plan("replies", "stall", count, to, after=after)

    def garble_replies(self, count: int = 1, garbage: bytes = _GARBAGE, to: str | bytes = b"") -> None:
        """Put garbage in the place of the next replies; the connections stay open."""
        self._plan("replies", "garble", count, to, after=0, garbage=garbage)

    def cut_requests(self, count: int = 1, after: int | None = None, to: str | bytes = b"") -> None:
        """Hand on so many bytes of the next requests, or half of them, and reset their connections."""
        self._plan("requests", "cut", count, to, after=after)

    def cut(self) -> None:
        """Reset all connections that are open."""
        self._await(self._end_links())

    def heal(self) -> None:
        """Switch all faults off, and hand on what is held. What was lost stays lost."""
        self._call(self._faults.heal)
        self._await(self._listen())

    # counters -----------------------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        """How many connections were accepted so far."""
        return self._faults.connections

    @property
    def open_connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    @property
    def request_bytes(self) -> int:
        """How many bytes were handed on to the server."""
        return self._faults.passed_bytes["requests"]

    @property
    def reply_bytes(self) -> int:
        """How many bytes were handed on to clients."""
        return self._faults.passed_bytes["replies"]

    @property
    def replies_lost(self) -> int:
        """How many replies ``lose_replies`` has swallowed so far."""
        return self._faults.replies_lost

    @property
    def faults_to_come(self) -> int:
        """How many of the counted faults have not happened yet."""
        return self._call(lambda: sum(planned.left for planned in self._faults.planned))

    # life ---------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Listen."""
        self._thread.start()
        try:
            self._await(self._listen())
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Reset what is open and listen no more. A proxy that is closed is not started again."""
        if self._thread.is_alive():
            self._await(self._deafen())
            self._await(self._end_links())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    # in the thread of the proxy -----------------------------------------------------------------------

    async def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port), backlog=_BACKLOG)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._accept, self._listener)

    async def _deafen(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            with contextlib.suppress(OSError):  # not every system can
                listener.shutdown(socket.SHUT_RDWR)  # a forked child may hold it open as well
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        """Take in one who knocks: in one step, so that nobody is left between the door and the house."""
        try:
            client, _ = listener.accept()
        except OSError:  # gone before it was accepted, or too many files are open: it is tried again
            return
        client.setblocking(False)
        self._faults.connections += 1
        if self._faults.reset_on_accept:
            reset(client)
            return
        link = self._loop.create_task(Link(client, self.target, self._faults).run())
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _end_links(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    # from other threads -------------------------------------------------------------------------------

    def _set(self, direction: Direction, **changes: float | bool) -> None:
        if direction not in ("both", "requests", "replies"):
            raise ValueError(f"direction must be 'both', 'requests' or 'replies', got {direction!r}")
        self._call(lambda: self._faults.set(direction, **changes))

    def _plan(
        self,
        way: Way,
        kind: Kind,
        count: int,
        to: str | bytes,
        *,
        after: int | None,
        garbage: bytes = b"",
    ) -> None:
        _check("count", count, 1)
        _check("after", after or 0, 0)
        about = to.encode() if isinstance(to, str) else to
        planned = Planned(way, kind, count, about, after, garbage)
        self._call(lambda: self._faults.planned.append(planned))

    def _call(self, function: Callable[[], T]) -> T:
        async def called() -> T:
            return function()

        return self._await(called())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the proxy does not run: start it, or use it in a with statement")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS)


def _check(name: str, value: float, least: float) -> None:
    if value < least:
        raise ValueError(f"{name} must be {least} or more, got {value}")
