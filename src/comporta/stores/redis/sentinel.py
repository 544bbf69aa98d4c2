"""Routes to a server: directly, or to the primary that sentinels name.

A route is used whenever a connection is made, and never while a caller waits for a reply. The sentinel route
is written once, as a flow, for blocking and async callers (``connection.py``, ``connection_async.py``). This
module does not know operations.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.redis.connection import Endpoint, HostPort, RedisConnection
from comporta.stores.redis.errors import translate_connect_error
from comporta.stores.redis.protocol import pack

_SENTINEL_PORT = 26379

AsyncConnect = Callable[[float], Coroutine[Any, Any, Any]]


class Route(Protocol):
    """Opens connections to the server that is to be used."""

    def connect(self, seconds: float) -> RedisConnection:
        """Connect, blocking, within ``seconds``."""

    def async_connect(self) -> AsyncConnect:
        """Return a function that connects on an event loop within its number of seconds."""


class DirectRoute:
    """The route to the host of the URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._endpoint = Endpoint(url)

    def connect(self, seconds: float) -> RedisConnection:
        """Connect."""
        return self._endpoint.connect(seconds)

    def async_connect(self) -> AsyncConnect:
        """Return a function that connects on an event loop."""
        from comporta.stores.redis.connection_async import AsyncEndpoint  # noqa: PLC0415 - pulls in asyncio

        return AsyncEndpoint(self._url).connect


class MultiHostURL(NamedTuple):
    """A URL with several hosts: the hosts, the part before them, the path and the options."""

    hosts: list[HostPort]
    url: str
    path: list[str]
    options: dict[str, str]

    @classmethod
    def parse(cls, url: str, port: int) -> MultiHostURL:
        """Read ``redis+…://user:password@h1:p1,h2:p2/…``."""
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        places = [_parse_host_port(host, port) for host in hosts.split(",") if host]
        if not places:
            raise ValueError(f"{parts.scheme}:// must name at least one host")
        base = f"{parts.scheme.partition('+')[0]}://{user}{at}"
        path = [part for part in parts.path.split("/") if part]
        return cls(places, base, path, dict(parse_qsl(parts.query, keep_blank_values=True)))

    def single_host_url(self, database: str, host: str = "localhost") -> str:
        """Return the URL of one host."""
        return f"{self.url}{host}/{database}?{urlencode(self.options)}"


def _parse_host_port(text: str, port: int) -> HostPort:
    host, colon, given = text.rpartition(":")
    if not colon or "]" in given:
        return text.strip("[]"), port
    if not given.isdecimal():
        raise ValueError("a port must be a number")  # not shown: it may be part of a password
    return host.strip("[]"), int(given)


class SentinelRoute:
    """The route to the primary of a service that sentinels watch.

    A sentinel's knowledge may be out of date, so the server that it names must confirm that it is the
    primary. The sentinel that was right is then asked first.
    """

    def __init__(self, url: str) -> None:
        multi_host = MultiHostURL.parse(url, _SENTINEL_PORT)
        if not 1 <= len(multi_host.path) <= 2:
            raise ValueError("redis+sentinel:// must end in /service or /service/database")
        self._service = multi_host.path[0]
        self._sentinel_hosts = multi_host.hosts
        login = [multi_host.options.pop(f"sentinel_{name}", "") for name in ("username", "password")]
        self._server_hosts = multi_host
        self._database = multi_host.path[1] if len(multi_host.path) > 1 else "0"
        self._server_url = multi_host.single_host_url(self._database)
        base = multi_host.url.partition("://")[0]
        user = f"{':'.join(map(_quote, login))}@" if any(login) else ""
        self._sentinel_url = multi_host._replace(url=f"{base}://{user}").single_host_url("0")
        self._endpoints = Endpoint(self._sentinel_url), Endpoint(self._server_url)

    def connect(self, seconds: float) -> RedisConnection:
        """Find the primary and connect to it."""
        connection: RedisConnection = run(self._connect_flow(*self._endpoints, seconds))
        return connection

    def primary_url(self, seconds: float) -> str:
        """Find the primary and return its own URL, for diagnostics that need a connection of their own."""
        connection: Any = self.connect(seconds)
        connection.disconnect()
        return self._server_hosts.single_host_url(self._database, f"{connection.host}:{connection.port}")

    def async_connect(self) -> AsyncConnect:
        """Return a function that finds the primary and connects to it."""
        from comporta.stores.redis.connection_async import AsyncEndpoint  # noqa: PLC0415 - pulls in asyncio

        sentinels, servers = AsyncEndpoint(self._sentinel_url), AsyncEndpoint(self._server_url)

        async def connect(seconds: float) -> Any:
            return await run_async(self._connect_flow(sentinels, servers, seconds))

        return connect

    def _connect_flow(self, sentinels: Any, servers: Any, seconds: float) -> Flow[Any]:
        share = seconds / (len(self._sentinel_hosts) + 1)  # so that a slow sentinel leaves time for the next
        errors = []
        for sentinel in list(self._sentinel_hosts):
            try:
                primary = yield from self._primary_address_flow(sentinels, sentinel, share)
                connection = yield from self._connect_primary_flow(servers, primary, share)
            except Exception as error:
                errors.append(translate_connect_error(error, "{}:{}".format(*sentinel)))
            else:
                others = [other for other in self._sentinel_hosts if other != sentinel]
                self._sentinel_hosts = [sentinel, *others]
                return connection
        reasons = "; ".join(map(str, errors))
        raise type(errors[-1])(f"no sentinel led to a primary of {self._service!r}: {reasons}")

    def _primary_address_flow(self, sentinels: Any, host_port: HostPort, seconds: float) -> Flow[HostPort]:
        command = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
        connection, address = yield from connect_and_ask_flow(sentinels, host_port, seconds, command)
        yield CloseConnection(connection)
        if not isinstance(address, list):
            raise StateUnavailableError(f"this sentinel knows no service {self._service!r}")
        host, port = address
        return host.decode(), int(port)

    def _connect_primary_flow(self, servers: Any, host_port: HostPort, seconds: float) -> Flow[Any]:
        connection, role = yield from connect_and_ask_flow(servers, host_port, seconds, pack(("ROLE",)))
        if role[0] != b"master":
            yield CloseConnection(connection)
            raise StateUnavailableError(
                "this sentinel is out of date: {}:{} is not the primary".format(*host_port)
            )
        return connection


def _quote(text: str) -> str:
    return quote(text, safe="")


def connect_and_ask_flow(
    endpoint: Any, host_port: HostPort, seconds: float, command: bytes
) -> Flow[tuple[Any, Any]]:
    """Connect to a host and send one command; returns the connection and the reply."""
    ends_ns = MONOTONIC.now_ns() + int(seconds * 1e9)
    connection = yield OpenConnection(endpoint, host_port, seconds)
    try:
        left = max(0.001, (ends_ns - MONOTONIC.now_ns()) / 1e9)
        return connection, (yield SendCommand(connection, command, left))
    except BaseException:
        yield CloseConnection(connection)
        raise


class OpenConnection(NamedTuple):
    """Effect: connect to a host."""

    endpoint: Any
    host_port: HostPort
    seconds: float

    def block(self) -> Any:
        """Connect, blocking."""
        return self.endpoint.connect(self.seconds, self.host_port)

    async def wait(self) -> Any:
        """Connect, awaiting."""
        return await self.endpoint.connect(self.seconds, self.host_port)


class SendCommand(NamedTuple):
    """Effect: send a command on a connection that has no other user, and return the reply."""

    connection: Any
    command: bytes
    seconds: float

    def block(self) -> Any:
        """Send it, blocking."""
        self.connection.set_deadline(MONOTONIC.now_ns(), self.seconds)
        self.connection.send_packed_command([self.command], check_health=False)
        return self.connection.read_response()

    async def wait(self) -> Any:
        """Send it, awaiting."""
        import asyncio  # noqa: PLC0415 - see clock.py

        async with asyncio.timeout(self.seconds) as _timeout:  # named: see clock.py
            await self.connection.send_packed_command(self.command, check_health=False)
            return await self.connection.read_response()


class CloseConnection(NamedTuple):
    """Effect: close a connection."""

    connection: Any

    def block(self) -> None:
        """Close it, blocking."""
        self.connection.disconnect()

    async def wait(self) -> None:
        """Close it, awaiting."""
        from comporta.stores.redis.connection_async import close_quietly  # noqa: PLC0415 - pulls in asyncio

        await close_quietly(self.connection)
