"""Blocking connections to a server: redis-py's, held to a deadline.

redis-py bounds each wait for a piece of an answer, so a server that sends one byte at a time would hold a
caller for as long as it likes. Here the whole of an exchange is bounded, and so is the whole of connecting
(the look-up of a name aside: it is the system's, and is done where nobody waits for it).
"""

from __future__ import annotations

from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from comporta.clock import MONOTONIC

_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
_PROMPT_NS = 1_000_000
_CHANCE_SECONDS = 0.01
_now_ns = MONOTONIC.now_ns

Place = tuple[str, int]
"""A host and a port."""


class Connection(Protocol):
    """What is used of redis-py's connections, which are not typed, and what is added to them here."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...

    def begin(self, began_ns: int, seconds: float) -> None:
        """Let what is done from now on end within so many seconds of ``began_ns``."""


class BoundedSocket:
    """A socket on which everything between two calls of ``begin`` ends by one deadline.

    The system is told of a new bound only when there is one: that costs as much as looking at the clock
    ten times, and most answers are there within a millisecond.
    """

    def __init__(self, inner: Any, began_ns: int, seconds: float) -> None:
        self._inner = inner
        self._told: float | None = inner.gettimeout()
        self._began_ns = began_ns
        self._seconds = seconds
        self.sendall = inner.sendall

    def begin(self, began_ns: int, seconds: float) -> None:
        """Start the clock."""
        self._began_ns = began_ns
        self._seconds = seconds
        if self._told != seconds:
            self.settimeout(seconds)

    def recv_into(self, buffer: Any) -> int:
        """Receive, as hiredis wants it."""
        if _now_ns() - self._began_ns > _PROMPT_NS:
            self._allow_the_rest()
        size: int = self._inner.recv_into(buffer)
        return size

    def recv(self, *arguments: Any) -> bytes:
        """Receive, as redis-py's own parsers want it."""
        if _now_ns() - self._began_ns > _PROMPT_NS:
            self._allow_the_rest()
        data: bytes = self._inner.recv(*arguments)
        return data

    def settimeout(self, seconds: float | None) -> None:
        """Note what the system was told."""
        self._told = seconds
        self._inner.settimeout(seconds)

    def _allow_the_rest(self) -> None:
        if self._told:  # 0 is for a look that does not wait
            left = self._seconds - (_now_ns() - self._began_ns) / 1e9
            if left < -_CHANCE_SECONDS:  # until then, one who was late itself may read what lies there
                raise TimeoutError("timed out")
            self.settimeout(max(0.001, left))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def bounded(kind: Any) -> Any:
    """Return one of redis-py's classes of connections, on bounded sockets."""

    class Bounded(kind):  # type: ignore[misc]  # the class is known when the URL is
        def _connect(self) -> BoundedSocket:
            began_ns = _now_ns()
            bound = BoundedSocket(super()._connect(), began_ns, self.socket_connect_timeout)
            self.begin = bound.begin
            return bound

    return Bounded


class Endpoint:
    """Where a server is, and what to say when connecting: a URL as redis-py reads it."""

    def __init__(self, url: str) -> None:
        from redis import ConnectionPool  # noqa: PLC0415 - an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415 - an extra
        from redis.retry import Retry  # noqa: PLC0415 - an extra

        self.url = normal(url)
        read = ConnectionPool.from_url(self.url, retry=Retry(NoBackoff(), 0), **OPTIONS)
        self._kind = bounded(read.connection_class)
        self._arguments = {**read.connection_kwargs, **OPTIONS}  # among a pool's options a URL's own win

    def connect(self, seconds: float, place: Place | None = None) -> Connection:
        """Connect, greet and authenticate, in so many seconds; at another place than the URL's if told."""
        given = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        elsewhere = {"host": place[0], "port": place[1]} if place else {}
        connection = cast(Connection, self._kind(**{**self._arguments, **given, **elsewhere}))
        try:
            connection.connect()
        except BaseException:  # redis-py cleans up after its own errors only
            connection.disconnect()
            raise
        return connection


OPTIONS: dict[str, Any] = {"decode_responses": False, "health_check_interval": 0}
"""What a URL cannot change; beside them no retries: a call that may have run must not run again."""


def normal(url: str) -> str:
    """Return a URL as redis-py knows it."""
    scheme, separator, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def address_of(url: str) -> str:
    """Return where the server is, without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
