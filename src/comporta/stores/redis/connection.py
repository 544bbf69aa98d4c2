"""Blocking connections to a server: redis-py's, with a deadline for a whole exchange.

redis-py limits the wait for each piece of a reply, so a server that sends one byte at a time could block a
caller indefinitely. Here one deadline covers the whole exchange, and one covers connecting (except for the
name lookup, which belongs to the operating system and runs in a background thread).

This module sends no commands of its own.
"""

from __future__ import annotations

from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from comporta.clock import MONOTONIC

_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}
_FAST_REPLY_NS = 1_000_000
_LAST_LOOK_SECONDS = 0.001
_PUNCTUAL_SECONDS = 0.005
_EXTENDED_MAX = 4

HostPort = tuple[str, int]
"""A host name and a port."""


class RedisConnection(Protocol):
    """The methods of redis-py's untyped connections in use, and what this module adds to them."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...

    def set_deadline(self, began_ns: int, seconds: float) -> None:
        """Make everything from now on end within ``seconds`` of ``began_ns``."""


class DeadlineSocket:
    """A socket on which everything between two calls of ``set_deadline`` ends by one deadline.

    A thread that the machine did not run, or that waited for the interpreter's lock, may find that its
    deadline has passed although the reply has arrived, or that the server had no time to reply. A deadline
    that passes is therefore extended by the time that the thread lost, up to ``_EXTENDED_MAX`` times its
    length, and once by a millisecond in any case.

    The socket changes the system's timeout only if the value differs: a change costs ten times as much as
    reading the clock, and most replies arrive within a millisecond.
    """

    def __init__(self, inner: Any, began_ns: int, seconds: float) -> None:
        self._inner = inner
        self._now_ns = MONOTONIC.now_ns
        self._applied_timeout: float | None = inner.gettimeout()
        self._began_ns = began_ns
        self._seconds = seconds
        self._lost = 0.0
        self._is_extended = False
        self._seconds_max = _EXTENDED_MAX * seconds
        self.sendall = inner.sendall

    def set_deadline(self, began_ns: int, seconds: float) -> None:
        """Make everything from now on end within ``seconds`` of ``began_ns``."""
        self._began_ns = began_ns
        self._seconds = seconds
        self._lost = (self._now_ns() - began_ns) / 1e9
        self._is_extended = False
        self._seconds_max = _EXTENDED_MAX * seconds
        if self._applied_timeout != seconds:
            self.settimeout(seconds)

    def recv_into(self, buffer: Any) -> int:
        """Receive, for hiredis."""
        if self._now_ns() - self._began_ns > _FAST_REPLY_NS:
            self._apply_remaining_time()
        while True:
            try:
                size: int = self._inner.recv_into(buffer)
            except TimeoutError:
                self._extend()
            else:
                return size

    def recv(self, *arguments: Any) -> bytes:
        """Receive, for redis-py's own parsers."""
        if self._now_ns() - self._began_ns > _FAST_REPLY_NS:
            self._apply_remaining_time()
        while True:
            try:
                data: bytes = self._inner.recv(*arguments)
            except TimeoutError:
                self._extend()
            else:
                return data

    def settimeout(self, seconds: float | None) -> None:
        """Set the system's timeout and remember it."""
        self._applied_timeout = seconds
        self._inner.settimeout(seconds)

    def _apply_remaining_time(self) -> None:
        if self._applied_timeout:  # 0 is redis-py's check that does not wait
            left = self._seconds - (self._now_ns() - self._began_ns) / 1e9
            if left > 0:
                self.settimeout(left)
            else:
                self._extend()

    def _extend(self) -> None:
        """Extend a deadline that has passed; raise ``TimeoutError`` if this thread lost no time."""
        elapsed = (self._now_ns() - self._began_ns) / 1e9
        lost = max(self._lost, elapsed - self._seconds)
        if self._is_extended and (lost < _PUNCTUAL_SECONDS or elapsed > self._seconds_max):
            raise TimeoutError("timed out")
        self._is_extended, self._lost = True, 0.0
        extra = min(max(_LAST_LOOK_SECONDS, lost), self._seconds_max)
        self._seconds = elapsed + extra
        self.settimeout(extra)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def with_deadline_socket(connection_class: Any) -> Any:
    """Return a subclass of one of redis-py's connection classes that uses ``DeadlineSocket``."""

    class DeadlineConnection(connection_class):  # type: ignore[misc]  # the base class depends on the URL
        def _connect(self) -> DeadlineSocket:
            began_ns = MONOTONIC.now_ns()
            bounded = DeadlineSocket(super()._connect(), began_ns, self.socket_connect_timeout)
            self.set_deadline = bounded.set_deadline
            return bounded

    return DeadlineConnection


class Endpoint:
    """A server's address and connection options, as redis-py reads them from a URL."""

    def __init__(self, url: str) -> None:
        from redis import ConnectionPool  # noqa: PLC0415 - an extra
        from redis.backoff import NoBackoff  # noqa: PLC0415 - an extra
        from redis.retry import Retry  # noqa: PLC0415 - an extra

        self.url = redis_py_url(url)
        pool = ConnectionPool.from_url(self.url, retry=Retry(NoBackoff(), 0), **FIXED_OPTIONS)
        self._connection_class = with_deadline_socket(pool.connection_class)
        # merged again: in a pool the URL's own options win
        self._arguments = {**pool.connection_kwargs, **FIXED_OPTIONS}

    def connect(self, seconds: float, host_port: HostPort | None = None) -> RedisConnection:
        """Connect and authenticate within ``seconds``, at ``host_port`` if given, else at the URL's host."""
        timeouts = {"socket_timeout": seconds, "socket_connect_timeout": seconds}
        target = {"host": host_port[0], "port": host_port[1]} if host_port else {}
        connection = cast(
            RedisConnection, self._connection_class(**{**self._arguments, **timeouts, **target})
        )
        try:
            connection.connect()
        except BaseException:  # redis-py cleans up only after its own errors
            connection.disconnect()
            raise
        return connection


FIXED_OPTIONS: dict[str, Any] = {"decode_responses": False, "health_check_interval": 0}
"""Options that a URL cannot change. Retries are off too: a call that may have run must not run again."""


def redis_py_url(url: str) -> str:
    """Return a URL with a scheme that redis-py knows."""
    scheme, separator, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def display_address(url: str) -> str:
    """Return a URL without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
