"""The connections of blocking callers to one server.

A caller waits for its own deadline and no longer, but connecting may take much longer than a decision: a
name to be looked up, TLS, a password. So connecting is done on threads of its own, and what they finish is
there for the next caller. A connection is used again only after it was answered on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.stores.connecting import Connection
from comporta.stores.naming import spoils, unreached
from comporta.threads import Bell, Run

T = TypeVar("T")

IDLE_MAX = 64
CONNECTS_MAX = 4
"""How many connections are made at once: enough for a burst of threads, no flood for a server in need."""

STALE_AFTER_NS = 50_000_000

CONNECTING_SECONDS = 0.15
_LOST_AFTER = 5
_CALM_NS = 1_000_000_000


def calm(answered_ns: int) -> bool:
    """Whether a server answered lately, or was never asked (0)."""
    return not answered_ns or MONOTONIC.now_ns() - answered_ns < _CALM_NS


class Pool:
    """Connections that are ready, and the making of more."""

    def __init__(
        self, connect: Callable[[float], Connection], address: str, timeout: float, connect_timeout: float
    ) -> None:
        self.idle: deque[tuple[Connection, int]] = deque(maxlen=IDLE_MAX)
        self._answered_ns = 0
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._connects = Connects(connect, self.idle, address, connect_timeout)

    def exchanged(
        self, command: bytes, began_ns: int, read: Callable[[Any], T], *, asking: bool = False
    ) -> T:
        """Send a command and return what ``read`` makes of its reply, within ``timeout`` of the beginning.

        ``asking``: there is a word before it, with a reply of its own.
        """
        connection, seconds = self._ready(), self._timeout
        if connection is None:
            patience = self._patience()
            connection = self._connects.wait(began_ns, patience)
            if patience > seconds:  # what connecting did not need is left for the first answer
                seconds = patience + seconds
            else:
                began_ns = MONOTONIC.now_ns()
        try:
            connection.begin(began_ns, seconds)
            connection.send_packed_command([command], check_health=False)
            reply = read(_after_asking(connection) if asking else connection.read_response())
        except ResponseError as error:
            if spoils(error):
                connection.disconnect()
                self.close()
            else:
                self._keep(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection)
        return reply

    def _patience(self) -> float:
        """Return how long to wait for a connection: longer where all is well, or was never tried.

        A connection takes several round trips, and the first one a process that is just starting. That is no
        reason to go on alone; a server that has not answered for a while is.
        """
        return max(self._timeout, CONNECTING_SECONDS) if calm(self._answered_ns) else self._timeout

    def reach(self) -> None:
        """Make sure that there is a connection, taking as long as connecting may take."""
        self._keep(self._ready() or self._connects.wait(MONOTONIC.now_ns(), self._connect_timeout))

    def close(self) -> None:
        """Close what is idle, and what is still being made as soon as it is."""
        self._connects.disown()
        while self.idle:
            self.idle.pop()[0].disconnect()

    def _keep(self, connection: Connection) -> None:
        self._answered_ns = now_ns = MONOTONIC.now_ns()
        self.idle.append((connection, now_ns))
        if self._connects.waiting:
            self._connects.tell()

    def _ready(self) -> Connection | None:
        """Return a connection that was idle; one that was idle for long is looked at first."""
        while self.idle:
            try:
                connection, since_ns = self.idle.pop()
            except IndexError:  # another thread was quicker
                return None
            if MONOTONIC.now_ns() - since_ns < STALE_AFTER_NS or not _spoiled(connection):
                return connection
            connection.disconnect()
        return None


def _after_asking(connection: Connection) -> Any:
    """Read both replies, whatever the first is: one left behind would be the next caller's answer."""
    try:
        connection.read_response()
    except ResponseError:
        with suppress(ResponseError):
            connection.read_response()
        raise
    return connection.read_response()


class Connects:
    """Connections in the making, and those who wait for one: a new one or one that is given back."""

    def __init__(
        self,
        connect: Callable[[float], Connection],
        idle: deque[tuple[Connection, int]],
        address: str,
        seconds: float,
    ) -> None:
        self.waiting: deque[Bell] = deque()
        self._connect = connect
        self._idle = idle
        self._address = address
        self._seconds = seconds
        self._lock = Lock()
        self._under_way: dict[object, int] = {}
        self._failed = 0
        self._error: Exception = StateUnavailableError("nothing was tried yet")

    def wait(self, began_ns: int, seconds: float) -> Connection:
        """Return the next connection there is, within so many seconds of the beginning."""
        ends_ns = began_ns + int(seconds * 1e9)
        bell, failed = Bell(), self._failed
        try:
            self.waiting.append(bell)
            return self._next(bell, failed, ends_ns)
        finally:
            with suppress(ValueError):
                self.waiting.remove(bell)
            if bell.is_set():  # it rang for one who goes away: somebody else may need what there is
                self.tell()

    def tell(self) -> None:
        """Wake one who waits: a connection is idle."""
        with self._lock:
            for bell in self.waiting.copy():
                if not bell.is_set():
                    bell.set()
                    return

    def disown(self) -> None:
        """Forget what is under way; it is closed when it is there."""
        with self._lock:
            self._under_way.clear()

    def _next(self, bell: Bell, failed: int, ends_ns: int) -> Connection:
        while True:
            if self._idle:
                try:
                    return self._idle.pop()[0]
                except IndexError:  # a caller that did not wait was quicker
                    continue
            if self._failed != failed:
                raise unreached(self._error, self._address) from self._error
            left_ns = ends_ns - MONOTONIC.now_ns()
            if left_ns <= 0:
                raise StateUnavailableError(f"still connecting to {self._address}; nothing was sent")
            token = self._begun()
            if token is None:
                bell.wait(left_ns / 1e9)
            elif not Run().start(self._make, token, self._seconds, name="comporta-connect"):
                self._make(token, left_ns / 1e9)

    def _begun(self) -> object | None:
        """Note that one more is under way, unless there are enough: one for each who waits and may hope."""
        with self._lock:
            now_ns, life_ns = MONOTONIC.now_ns(), int(self._seconds * 1e9)
            ages_ns = {token: now_ns - since_ns for token, since_ns in self._under_way.items()}
            for token, age_ns in ages_ns.items():
                if age_ns > _LOST_AFTER * life_ns:  # nobody makes it: whoever began was interrupted
                    del self._under_way[token]
            hopeful = sum(age_ns < life_ns for age_ns in ages_ns.values())
            if hopeful >= len(self.waiting) or len(self._under_way) >= CONNECTS_MAX:
                return None
            token = object()
            self._under_way[token] = now_ns
            return token

    def _make(self, token: object, seconds: float) -> None:
        made, error = self._tried(seconds)
        with self._lock:
            wanted = self._under_way.pop(token, None) is not None
            if error is not None:
                self._error = error
                self._failed += 1
            elif made is not None and wanted:
                self._idle.append((made, MONOTONIC.now_ns()))
                made = None
        if error is not None:
            for bell in self.waiting.copy():
                bell.set()
        elif made is not None:
            made.disconnect()
        else:
            self.tell()

    def _tried(self, seconds: float) -> tuple[Connection | None, Exception | None]:
        try:
            return self._connect(seconds), None
        except Exception as error:
            return None, error


def _spoiled(connection: Connection) -> bool:
    """Whether an idle connection was closed by the server, or holds something nobody asked for."""
    try:
        return bool(connection.can_read(timeout=0))
    except Exception:  # whatever it is, this connection is of no use
        return True
