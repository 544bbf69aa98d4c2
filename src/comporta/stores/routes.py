"""How to get to the server that shall be asked: straight, or by asking sentinels who the primary is.

A route is followed whenever a connection is made, and never while a caller waits for an answer. Each is
written once, as a flow; the blocking and the awaiting side carry it out (``connecting*.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.connecting import Connection, Endpoint, Place
from comporta.stores.naming import unreached
from comporta.stores.wire import pack

_SENTINEL_PORT = 26379

Goes = Callable[[float], Coroutine[Any, Any, Any]]


class Route(Protocol):
    """A way to a server."""

    def connect(self, seconds: float) -> Connection:
        """Go it, blocking, within so many seconds."""

    def awaiting(self) -> Goes:
        """Return what goes it on an event loop, within so many seconds."""


class Straight:
    """To where the URL says."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._endpoint = Endpoint(url)

    def connect(self, seconds: float) -> Connection:
        """Connect."""
        return self._endpoint.connect(seconds)

    def awaiting(self) -> Goes:
        """Return what connects."""
        from comporta.stores.connecting_async import AsyncEndpoint  # noqa: PLC0415 - pulls in asyncio

        return AsyncEndpoint(self._url).connect


class Several(NamedTuple):
    """A URL that names several servers: their places, one of them as redis-py reads it, what follows."""

    places: list[Place]
    url: str
    path: list[str]
    options: dict[str, str]

    @classmethod
    def read(cls, url: str, port: int) -> Several:
        """Read ``redis+…://user:password@h1:p1,h2:p2/…``."""
        parts = urlsplit(url)
        user, at, hosts = parts.netloc.rpartition("@")
        places = [_place(host, port) for host in hosts.split(",") if host]
        if not places:
            raise ValueError(f"{parts.scheme}:// must name at least one host")
        base = f"{parts.scheme.partition('+')[0]}://{user}{at}"
        path = [part for part in parts.path.split("/") if part]
        return cls(places, base, path, dict(parse_qsl(parts.query, keep_blank_values=True)))

    def one(self, database: str, place: str = "localhost") -> str:
        """Return the URL of one server, at a place or but for that."""
        return f"{self.url}{place}/{database}?{urlencode(self.options)}"


def _place(text: str, port: int) -> Place:
    host, colon, given = text.rpartition(":")
    if not colon or "]" in given:
        return text.strip("[]"), port
    if not given.isdecimal():
        raise ValueError("a port must be a number")  # it may be a part of a password
    return host.strip("[]"), int(given)


class Watched:
    """To the primary of a service, as the sentinels that watch it have it.

    A sentinel may be behind the times, so who is named is asked whether it is the primary. The one that was
    right is asked first from then on.
    """

    def __init__(self, url: str) -> None:
        several = Several.read(url, _SENTINEL_PORT)
        if not 1 <= len(several.path) <= 2:
            raise ValueError("redis+sentinel:// must end in /service or /service/database")
        self._service = several.path[0]
        self._places = several.places
        login = [several.options.pop(f"sentinel_{name}", "") for name in ("username", "password")]
        self._several = several
        self._database = several.path[1] if len(several.path) > 1 else "0"
        self._servers = several.one(self._database)
        base = several.url.partition("://")[0]
        user = f"{':'.join(map(_quoted, login))}@" if any(login) else ""
        self._sentinels = several._replace(url=f"{base}://{user}").one("0")
        self._blocking = Endpoint(self._sentinels), Endpoint(self._servers)

    def connect(self, seconds: float) -> Connection:
        """Find the primary and connect to it."""
        connection: Connection = run(self._followed(*self._blocking, seconds))
        return connection

    def primary_url(self, seconds: float) -> str:
        """Find the primary and return its own URL, for who has to ask it what comporta never asks."""
        connection: Any = self.connect(seconds)
        connection.disconnect()
        return self._several.one(self._database, f"{connection.host}:{connection.port}")

    def awaiting(self) -> Goes:
        """Return what finds the primary and connects to it."""
        from comporta.stores.connecting_async import AsyncEndpoint  # noqa: PLC0415 - pulls in asyncio

        sentinels, servers = AsyncEndpoint(self._sentinels), AsyncEndpoint(self._servers)

        async def connect(seconds: float) -> Any:
            return await run_async(self._followed(sentinels, servers, seconds))

        return connect

    def _followed(self, sentinels: Any, servers: Any, seconds: float) -> Flow[Any]:
        share = seconds / (len(self._places) + 1)  # none of them may use up the time of the next
        said = []
        for place in list(self._places):
            try:
                named = yield from self._asked(sentinels, place, share)
                connection = yield from self._primary(servers, named, share)
            except Exception as error:
                said.append(unreached(error, "{}:{}".format(*place)))
            else:
                self._places = [place, *(other for other in self._places if other != place)]
                return connection
        reasons = "; ".join(map(str, said))
        raise type(said[-1])(f"no sentinel led to a primary of {self._service!r}: {reasons}")

    def _asked(self, sentinels: Any, place: Place, seconds: float) -> Flow[Place]:
        question = pack(("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service))
        connection, named = yield from greeted(sentinels, place, seconds, question)
        yield Close(connection)
        if not isinstance(named, list):
            raise StateUnavailableError(f"this sentinel knows no service {self._service!r}")
        host, port = named
        return host.decode(), int(port)

    def _primary(self, servers: Any, place: Place, seconds: float) -> Flow[Any]:
        connection, role = yield from greeted(servers, place, seconds, pack(("ROLE",)))
        if role[0] != b"master":
            yield Close(connection)
            raise StateUnavailableError("this sentinel is behind: {}:{} is no primary".format(*place))
        return connection


def _quoted(text: str) -> str:
    return quote(text, safe="")


def greeted(endpoint: Any, place: Place, seconds: float, question: bytes) -> Flow[tuple[Any, Any]]:
    """Connect to a place and ask one thing; returns the connection and the answer."""
    ends_ns = MONOTONIC.now_ns() + int(seconds * 1e9)
    connection = yield Open(endpoint, place, seconds)
    try:
        left = max(0.001, (ends_ns - MONOTONIC.now_ns()) / 1e9)
        return connection, (yield Ask(connection, question, left))
    except BaseException:
        yield Close(connection)
        raise


class Open(NamedTuple):
    """Effect: connect to a place."""

    endpoint: Any
    place: Place
    seconds: float

    def block(self) -> Any:
        """Connect, holding the thread."""
        return self.endpoint.connect(self.seconds, self.place)

    async def wait(self) -> Any:
        """Connect, holding nothing."""
        return await self.endpoint.connect(self.seconds, self.place)


class Ask(NamedTuple):
    """Effect: send a command on a connection that nobody else uses, and return the answer."""

    connection: Any
    command: bytes
    seconds: float

    def block(self) -> Any:
        """Ask, holding the thread."""
        self.connection.begin(MONOTONIC.now_ns(), self.seconds)
        self.connection.send_packed_command([self.command], check_health=False)
        return self.connection.read_response()

    async def wait(self) -> Any:
        """Ask, holding nothing."""
        import asyncio  # noqa: PLC0415 - see clock.py

        async with asyncio.timeout(self.seconds):
            await self.connection.send_packed_command(self.command, check_health=False)
            return await self.connection.read_response()


class Close(NamedTuple):
    """Effect: close a connection."""

    connection: Any

    def block(self) -> None:
        """Close it."""
        self.connection.disconnect()

    async def wait(self) -> None:
        """Close it."""
        from comporta.stores.connecting_async import closed  # noqa: PLC0415 - pulls in asyncio

        await closed(self.connection)
