"""Awaiting connections to a server: redis-py's, with names looked up where nobody waits for it.

An event loop looks up names on its pool of threads, and when it ends waits for that pool: a resolver that
hangs would hold the whole program. So names are looked up on threads that nothing waits for.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock, Thread
from typing import Any, Protocol, cast

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Lost

from comporta.stores.connecting import OPTIONS, Place, normal

_ADDRESSES_MAX = 4


class Connection(Protocol):
    """What is used of redis-py's connections, which are not typed."""

    @property
    def is_connected(self) -> bool: ...

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, command: bytes, check_health: bool) -> None: ...

    async def read_response(self) -> Any: ...

    async def can_read_destructive(self) -> bool:
        """Look for data or an end nobody asked for; called ``can_read`` from redis-py 8 on."""


class AsyncEndpoint:
    """Where a server is, and what to say when connecting: a URL as redis-py reads it."""

    def __init__(self, url: str) -> None:
        unbound = {"socket_timeout": None, "socket_connect_timeout": None}
        read = ConnectionPool.from_url(normal(url), retry=Retry(NoBackoff(), 0), **unbound, **OPTIONS)
        self._kind = _placed(read.connection_class)
        self._arguments = {**read.connection_kwargs, **OPTIONS}  # among a pool's options a URL's own win
        self._names = Names()

    async def connect(self, seconds: float, place: Place | None = None) -> Connection:
        """Connect, greet and authenticate, in so many seconds; at another place than the URL's if told."""
        async with asyncio.timeout(seconds):
            if "path" in self._arguments:
                return await self._connected("", {})
            here = self._arguments.get("host", "localhost"), self._arguments.get("port", 6379)
            return await self._connected_to(*(place or here))

    async def _connected_to(self, host: str, port: int) -> Connection:
        refused: Exception = OSError(f"{host} has no address")
        for address in await self._names.addresses(host, port):
            try:
                return await self._connected(address, {"host": host, "port": port})
            except (Lost, OSError) as error:
                refused = error
        raise refused

    async def _connected(self, address: str, place: dict[str, Any]) -> Connection:
        connection = cast(Connection, self._kind(**{**self._arguments, **place}))
        connection.address = address  # type: ignore[attr-defined]  # see _placed
        try:
            await connection.connect()
        except BaseException:  # redis-py cleans up after its own errors only
            await closed(connection)
            raise
        return connection


async def closed(connection: Connection) -> None:
    """Close a connection now, whatever state it is in."""
    with suppress(Exception):
        await connection.disconnect(nowait=True)


def _placed(kind: Any) -> Any:
    """Return one of redis-py's classes of connections, that goes to an address already looked up."""

    class Placed(kind):  # type: ignore[misc]  # the class is known when the URL is
        address = ""

        def _connection_arguments(self) -> dict[str, Any]:
            arguments = dict(super()._connection_arguments())
            if "ssl" in arguments:
                arguments["server_hostname"] = arguments["host"]
            arguments["host"] = self.address
            return arguments

    return Placed


class Names:
    """Looks up names, each once at a time however many ask."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[str, int], Future[list[str]]] = {}
        self._lock = Lock()

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return the first few addresses of a name."""
        if _is_address(host):
            return [host]
        with self._lock:
            found = self._under_way.get((host, port))
            if found is None:
                found = self._under_way[host, port] = Future()
                found.set_running_or_notify_cancel()  # nobody who stops waiting takes it from the others
                try:
                    Thread(target=self._look_up, args=(host, port, found), daemon=True).start()
                except RuntimeError:  # no thread can be had now; the next may get one
                    del self._under_way[host, port]
                    raise
        return await asyncio.wrap_future(found)

    def _look_up(self, host: str, port: int, found: Future[list[str]]) -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            outcome = list(dict.fromkeys(str(info[4][0]) for info in infos))[:_ADDRESSES_MAX]
        except Exception as error:  # a name that cannot be one is a UnicodeError
            self._done(host, port)
            found.set_exception(error)
        else:
            self._done(host, port)
            found.set_result(outcome)

    def _done(self, host: str, port: int) -> None:
        with self._lock:
            del self._under_way[host, port]


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False
