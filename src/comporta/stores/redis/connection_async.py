"""Async connections to a server: redis-py's, with name lookups on daemon threads.

An event loop resolves names on its thread pool and waits for that pool when it closes: a hanging resolver
would keep the whole program from exiting. This module therefore resolves names on daemon threads, which
nothing waits for. It sends no commands of its own.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, Protocol, cast

from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Lost

from comporta.runtime import RUNTIME
from comporta.stores.redis.connection import FIXED_OPTIONS, HostPort, redis_py_url

_ADDRESSES_MAX = 4


class AsyncRedisConnection(Protocol):
    """The methods of redis-py's untyped connections in use."""

    @property
    def is_connected(self) -> bool: ...

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = False) -> None: ...

    async def send_packed_command(self, command: bytes, check_health: bool) -> None: ...

    async def read_response(self) -> Any: ...

    async def can_read_destructive(self) -> bool:
        """Check for unexpected data or a closed connection; called ``can_read`` from redis-py 8 on."""


class AsyncEndpoint:
    """A server's address and connection options, as redis-py reads them from a URL."""

    def __init__(self, url: str) -> None:
        no_timeouts = {"socket_timeout": None, "socket_connect_timeout": None}
        pool = ConnectionPool.from_url(
            redis_py_url(url), retry=Retry(NoBackoff(), 0), **no_timeouts, **FIXED_OPTIONS
        )
        self._connection_class = _adapt_connection(pool.connection_class)
        # merged again: in a pool the URL's own options win
        self._arguments = {**pool.connection_kwargs, **FIXED_OPTIONS}
        self._resolver = NameResolver()

    async def connect(self, seconds: float, host_port: HostPort | None = None) -> AsyncRedisConnection:
        """Connect and authenticate within ``seconds``, at ``host_port`` if given, else at the URL's host."""
        async with asyncio.timeout(seconds) as _timeout:  # named: see clock.py
            if "path" in self._arguments:
                return await self._connect_to_address("", {})
            default = self._arguments.get("host", "localhost"), self._arguments.get("port", 6379)
            return await self._connect_to_host(*(host_port or default))

    async def _connect_to_host(self, host: str, port: int) -> AsyncRedisConnection:
        last_error: Exception = OSError(f"{host} has no address")
        for address in await self._resolver.addresses(host, port):
            try:
                return await self._connect_to_address(address, {"host": host, "port": port})
            except (Lost, OSError) as error:
                last_error = error
        raise last_error

    async def _connect_to_address(self, address: str, host_port: dict[str, Any]) -> AsyncRedisConnection:
        connection = cast(AsyncRedisConnection, self._connection_class(**{**self._arguments, **host_port}))
        connection.address = address  # type: ignore[attr-defined]  # see _adapt_connection
        try:
            await connection.connect()
        except BaseException:  # redis-py cleans up only after its own errors
            await close_quietly(connection)
            raise
        return connection


async def close_quietly(connection: AsyncRedisConnection) -> None:
    """Close a connection now, in any state; errors are ignored."""
    with suppress(Exception):
        await connection.disconnect(nowait=True)


def _adapt_connection(connection_class: Any) -> Any:
    """Return a subclass of one of redis-py's connection classes for an address that is already resolved.

    It does not write to a connection that was lost: in Python 3.12 and early 3.13 ``writelines`` would
    then leave its descriptor in the event loop, and the next connection with that descriptor would hang.
    """

    class ResolvedConnection(connection_class):  # type: ignore[misc]  # the base class depends on the URL
        address = ""

        def _connection_arguments(self) -> dict[str, Any]:
            arguments = dict(super()._connection_arguments())
            if "ssl" in arguments:
                arguments["server_hostname"] = arguments["host"]
            arguments["host"] = self.address
            return arguments

        async def send_packed_command(self, command: bytes, check_health: bool = True) -> None:
            if self._writer is not None and self._writer.is_closing():
                await self.disconnect(nowait=True)
                raise Lost("the connection was lost while it was idle")
            await super().send_packed_command(command, check_health)

    return ResolvedConnection


class NameResolver:
    """Resolves host names; concurrent lookups of one name share a single thread."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, int], Future[list[str]]] = {}
        self._lock = Lock()

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return up to four addresses of a host."""
        if _is_address(host):
            return [host]
        with self._lock:
            pending = self._pending.get((host, port))
            if pending is None:
                pending = self._pending[host, port] = Future()
                pending.set_running_or_notify_cancel()  # a caller that gives up does not cancel it for others
                try:
                    RUNTIME.start_thread(partial(self._resolve, host, port, pending), "comporta-resolver")
                except RuntimeError:  # no thread can be started now; the next call may succeed
                    del self._pending[host, port]
                    raise
        return await asyncio.wrap_future(pending)

    def _resolve(self, host: str, port: int, pending: Future[list[str]]) -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(info[4][0]) for info in infos))[:_ADDRESSES_MAX]
        except Exception as error:  # an impossible name is a UnicodeError
            self._forget(host, port)
            pending.set_exception(error)
        else:
            self._forget(host, port)
            pending.set_result(addresses)

    def _forget(self, host: str, port: int) -> None:
        with self._lock:
            del self._pending[host, port]


def _is_address(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False
