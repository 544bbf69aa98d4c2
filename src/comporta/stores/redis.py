"""State shared by a fleet through Redis or Valkey: ``redis://``, ``rediss://``, ``valkey://``, ``unix://``.

Every operation is one script call. A blocking caller makes one round trip on a connection of its own
(:class:`RedisStore`); awaiting callers of one tick of an event loop go out together (``redis_async.py``).
Connections, TLS and authentication are redis-py's; what is done with them is here, because redis-py's own
command path costs several times the server's work. No call that may have been carried out is repeated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from comporta import forks
from comporta.clock import MONOTONIC, Clock
from comporta.errors import StateError, StateUnavailableError
from comporta.flow import Flow, run, run_async
from comporta.stores.base import Operation
from comporta.stores.effects import Apply
from comporta.stores.listing import ListRecords, Page
from comporta.stores.wire import Call, named

if TYPE_CHECKING:
    from comporta.stores.redis_async import Lines

R = TypeVar("R")

TIMEOUT_SECONDS = 1.0
_IDLE_MAX = 64
STALE_AFTER_NS = 50_000_000
_SCHEMES = {"valkey": "redis", "valkeys": "rediss"}


class Connection(Protocol):
    """What is used of redis-py's connections, which are not typed."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...

    def read_response(self) -> Any: ...

    def can_read(self, timeout: float) -> bool: ...


class RedisStore:
    """A store for a fleet.

    ``clock`` is for tests: with it the scripts are told the time, instead of asking the server.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT_SECONDS, clock: Clock | None = None) -> None:
        if not 0.001 <= timeout <= 60:
            raise ValueError(f"timeout must be 0.001 to 60 seconds, got {timeout}")
        try:
            from redis import ConnectionPool, exceptions  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise StateUnavailableError(
                "redis:// needs the package redis: install comporta[redis]"
            ) from error
        self.url = _normal(url)
        self.address = _address(url)
        self.timeout = timeout
        self.clock = clock or MONOTONIC
        self._told_time = clock is not None
        self._pool = ConnectionPool.from_url(self.url, **self.options(blocking=True))
        self._errors = exceptions
        self._idle: deque[tuple[Connection, int]] = deque(maxlen=_IDLE_MAX)
        self._lines: Lines | None = None
        self._making = Lock()
        forks.register(self)

    def options(self, *, blocking: bool) -> dict[str, Any]:
        """Return redis-py's options: no retries, because a call that may have run must not run again."""
        from redis.backoff import NoBackoff  # noqa: PLC0415 - an extra

        if blocking:
            from redis.retry import Retry  # noqa: PLC0415 - an extra
        else:
            from redis.asyncio.retry import Retry  # type: ignore[assignment]  # noqa: PLC0415

        return {
            "socket_timeout": self.timeout if blocking else None,
            "socket_connect_timeout": self.timeout,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "health_check_interval": 0,
        }

    def now_us(self) -> int:
        """Return the time to tell a script; 0 lets it ask the server."""
        return self.clock.now_ns() // 1000 if self._told_time else 0

    def apply(self, operation: Operation[R]) -> R:
        """Carry out an operation in one round trip."""
        [reply] = self._called(Call(operation.script, [operation]))
        if isinstance(reply, StateError):
            raise reply
        result: R = reply
        return result

    def apply_async(self, operation: Operation[R]) -> Coroutine[Any, Any, R]:
        """Carry out an operation together with the others asked for in this tick of the loop."""
        return self.lines().apply(operation)

    def entries(self, space: str) -> dict[str, bytes]:
        """Return the live records of a space, a page at a time."""
        return run(self._listed(space))

    async def entries_async(self, space: str) -> dict[str, bytes]:
        """Return what ``entries`` returns."""
        return await run_async(self._listed(space))

    def _listed(self, space: str) -> Flow[dict[str, bytes]]:
        found: dict[str, bytes] = {}
        cursor = b"0"
        while True:
            page: Page = yield Apply(self, ListRecords(space, cursor))
            found.update(page.records)
            if page.cursor == b"0":
                return found
            cursor = page.cursor

    def close(self) -> None:
        """Close the connections of blocking callers."""
        while self._idle:
            self._idle.pop()[0].disconnect()

    async def aclose(self) -> None:
        """Close all connections, those of the running event loop included."""
        if self._lines is not None:
            await self._lines.aclose()
        self.close()

    def lines(self) -> Lines:
        """Return the awaiting side, made when first asked for."""
        lines = self._lines
        if lines is None:
            from comporta.stores.redis_async import Lines  # noqa: PLC0415 - pulls in asyncio

            with self._making:  # several threads may come here at once, each with a loop of its own
                lines = self._lines = self._lines or Lines(self)
        return lines

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent."""
        self._idle.clear()
        self._lines = None
        forks.renew(self._making)

    def _called(self, call: Call) -> list[Any]:
        """Make one script call; one that the server has forgotten is sent again with its text."""
        now_us = self.now_us()
        try:
            try:
                raw = self._exchanged(call.packed(now_us))
            except self._errors.NoScriptError:  # so it was not carried out
                raw = self._exchanged(call.packed(now_us, with_text=True))
        except (self._errors.RedisError, OSError) as error:
            raise named(error, self.address, call.names()) from error
        return call.replies(raw)

    def _exchanged(self, command: bytes) -> Any:
        """Send a command and return its reply. Only an answered connection is used again."""
        connection = self._connection()
        try:
            connection.send_packed_command([command], check_health=False)
            reply = connection.read_response()
        except self._errors.ResponseError:
            self._idle.append((connection, MONOTONIC.now_ns()))
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._idle.append((connection, MONOTONIC.now_ns()))
        return reply

    def _connection(self) -> Connection:
        """Return a connection that is ready; one that was idle is looked at first."""
        while self._idle:
            connection, since_ns = self._idle.pop()
            if MONOTONIC.now_ns() - since_ns < STALE_AFTER_NS or not _spoiled(connection):
                return connection
            connection.disconnect()
        connection = cast(Connection, self._pool.connection_class(**self._pool.connection_kwargs))
        connection.connect()
        return connection


def _spoiled(connection: Connection) -> bool:
    """Whether an idle connection was closed by the server, or holds something nobody asked for."""
    try:
        return bool(connection.can_read(timeout=0))
    except Exception:  # whatever it is, this connection is of no use
        return True


def _normal(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{_SCHEMES.get(scheme, scheme)}{separator}{rest}"


def _address(url: str) -> str:
    """Return where the server is, without user and password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
