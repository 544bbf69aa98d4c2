"""The connections of blocking callers to one server.

A caller waits only until its own deadline, but connecting may take much longer than a decision: a name
lookup, TLS, authentication. Background threads therefore connect, and a connection that is ready too late for
its caller serves the next one. A connection is reused only after a reply was read from it.

This module does not know what the commands mean.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from comporta import fork_safety
from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.runtime import PerProcess, at_exit
from comporta.stores.redis.connection import RedisConnection
from comporta.stores.redis.deadline import AdaptiveDeadline
from comporta.stores.redis.errors import invalidates_connection, translate_connect_error
from comporta.threads import AutoResetEvent, BackgroundThread

T = TypeVar("T")

IDLE_MAX = 64
"""How many idle connections are kept; any further returned connection is closed."""

CONNECTS_MAX = 4
"""How many connections are made at the same time: enough for a burst of threads without flooding a server."""

CHECK_IDLE_AFTER_NS = 50_000_000

CONNECT_ALLOWANCE_SECONDS = 0.15
_PROMISING_NS = 300_000_000
"""An attempt that takes longer than this may have lost a packet, so another one is started."""

_ABANDONED_AFTER = 5
_RECENT_NS = 2_000_000_000
_PIECE_NS = 25_000_000
_PUNCTUAL_NS = 5_000_000
_EXIT_SECONDS_MAX = 0.5


def answered_recently(answered_ns: int) -> bool:
    """Whether a server answered within the last two heartbeats (2 s), or was never called (0)."""
    return not answered_ns or MONOTONIC.now_ns() - answered_ns < _RECENT_NS


class BlockingPool:
    """Idle connections, and exchanges of a command and its reply on them."""

    def __init__(
        self,
        connect: Callable[[float], RedisConnection],
        address: str,
        deadline: AdaptiveDeadline,
        connect_timeout: float,
    ) -> None:
        self.idle: deque[tuple[RedisConnection, int]] = deque()
        self._is_retired = False
        self._answered_ns = 0
        self._deadline = deadline
        self._connect_timeout = connect_timeout
        self._pending = PendingConnections(connect, self.idle, address, connect_timeout)

    def exchange(
        self, command: bytes, began_ns: int, parse: Callable[[Any], T], *, asking: bool = False
    ) -> T:
        """Send a command and return what ``parse`` makes of its reply, within the deadline from ``began_ns``.

        With ``asking``, ASKING precedes the command and has its own reply.
        """
        receive = _receive_after_asking if asking else _receive
        return self._exchange(command, began_ns, parse, receive)

    def exchange_many(self, commands: Sequence[bytes], began_ns: int) -> list[Any]:
        """Send several commands together and return their replies; an error of one is its reply."""
        receive = partial(_receive_many, len(commands))
        return self._exchange(b"".join(commands), began_ns, list, receive)

    def _exchange(
        self,
        command: bytes,
        began_ns: int,
        parse: Callable[[Any], T],
        receive: Callable[[RedisConnection], Any],
    ) -> T:
        connection, seconds = self._idle_connection(), self._deadline.seconds
        if connection is None:
            connect_wait = self._connect_wait()
            connection = self._pending.wait(began_ns, connect_wait)
            waited = (MONOTONIC.now_ns() - began_ns) / 1e9
            # the first reply may use the time that connecting did not need
            seconds += max(0.0, connect_wait - waited) if connect_wait > seconds else 0.0
            began_ns = MONOTONIC.now_ns()
        sent_ns = MONOTONIC.now_ns()
        try:
            connection.set_deadline(began_ns, seconds)
            connection.send_packed_command([command], check_health=False)
            reply = parse(receive(connection))
        except ResponseError as error:
            if invalidates_connection(error):
                connection.disconnect()
                self.close()
            else:
                self._return_connection(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._return_connection(connection)
        self._deadline.record(self._answered_ns - sent_ns)
        return reply

    def _connect_wait(self) -> float:
        """Return how long to wait for a connection: longer if the server answered recently or is new.

        Connecting takes several round trips, and even longer in a process that is just starting. That is no
        reason to fail over, unless the server has not answered for a while.
        """
        seconds = self._deadline.seconds
        return max(seconds, CONNECT_ALLOWANCE_SECONDS) if answered_recently(self._answered_ns) else seconds

    def ensure_connection(self) -> None:
        """Wait until there is a connection, for at most ``connect_timeout``."""
        self._return_connection(
            self._idle_connection() or self._pending.wait(MONOTONIC.now_ns(), self._connect_timeout)
        )

    def close(self) -> None:
        """Close all idle connections; those still being made are closed when they are ready."""
        self._pending.abandon()
        self._close_idle()

    def retire(self) -> None:
        """Close all idle connections, and from now on each connection after its use.

        Background threads may still have something to send, for example the release of a permit.
        """
        self._is_retired = True
        self.close()

    def _close_idle(self) -> None:
        while self.idle:
            with suppress(IndexError):  # another thread was faster
                self.idle.pop()[0].disconnect()

    def _return_connection(self, connection: RedisConnection) -> None:
        self._answered_ns = self._pending.answered_ns = now_ns = MONOTONIC.now_ns()
        self._deadline.answered_ns = now_ns
        if len(self.idle) >= IDLE_MAX:
            connection.disconnect()
            return
        self.idle.append((connection, now_ns))
        if self._pending.waiters:
            self._pending.wake_one()
        elif self._is_retired:  # read after the append: retire() may have closed the others before it
            self._close_idle()

    def _idle_connection(self) -> RedisConnection | None:
        """Return an idle connection, checked if idle for more than 50 ms; ``None`` if there is none."""
        while self.idle:
            try:
                connection, since_ns = self.idle.pop()
            except IndexError:  # another thread was faster
                return None
            if MONOTONIC.now_ns() - since_ns < CHECK_IDLE_AFTER_NS or not _is_stale(connection):
                return connection
            connection.disconnect()
        return None


def _receive(connection: RedisConnection) -> Any:
    return connection.read_response()


def _receive_many(count: int, connection: RedisConnection) -> list[Any]:
    """Read ``count`` replies; raise the first error that makes the connection unusable."""
    replies: list[Any] = []
    for _ in range(count):
        try:
            replies.append(connection.read_response())
        except ResponseError as error:
            replies.append(error)
    for reply in replies:
        if isinstance(reply, ResponseError) and invalidates_connection(reply):
            raise reply
    return replies


def _receive_after_asking(connection: RedisConnection) -> Any:
    """Read both replies, even if the first is an error: the next caller would get the second one."""
    try:
        connection.read_response()
    except ResponseError:
        with suppress(ResponseError):
            connection.read_response()
        raise
    return connection.read_response()


class _WaitBound:
    """How long one caller waits for a connection.

    The caller waits in short intervals. If an interval takes longer than planned, this thread, and probably
    the connecting threads, could not run: the extra time does not count.
    """

    __slots__ = ("_ends_ns", "_last_ns", "_next_ns", "_span_ns")

    def __init__(self, began_ns: int, seconds: float, seconds_max: float) -> None:
        self._span_ns = int(seconds * 1e9)
        self._ends_ns = began_ns + self._span_ns
        self._last_ns = began_ns + int(max(seconds, seconds_max) * 1e9)
        self._next_ns = began_ns + _PIECE_NS

    def piece_ns(self, answered_ns: int) -> int:
        """Return how long to wait now, given when the server last answered; 0 or less if time is up."""
        now_ns = MONOTONIC.now_ns()
        lost_ns = max(0, now_ns - self._next_ns - _PUNCTUAL_NS)
        self._ends_ns = min(max(self._ends_ns + lost_ns, answered_ns + self._span_ns), self._last_ns)
        piece_ns = min(self._ends_ns - now_ns, _PIECE_NS)
        self._next_ns = now_ns + piece_ns
        return piece_ns

    def left_seconds(self) -> float:
        """Return the longest time that the caller will still wait."""
        return max(0.001, (self._ends_ns - MONOTONIC.now_ns()) / 1e9)


class ConnectThreads:
    """The threads of this process that are connecting."""

    def __init__(self) -> None:
        self._threads: set[BackgroundThread] = set()
        fork_safety.register(self)

    def start(self, connect: Callable[[], None]) -> bool:
        """Run ``connect`` on a thread; returns false if the system cannot start one."""
        thread = BackgroundThread()
        self._threads.add(thread)
        is_started = thread.start(self._run, thread, connect, name="comporta-connect")
        if not is_started:
            self._threads.discard(thread)
        return is_started

    def wait(self, seconds: float) -> None:
        """Wait until all of them have ended, for up to ``seconds``."""
        ends_ns = MONOTONIC.now_ns() + int(seconds * 1e9)
        for thread in list(self._threads):
            thread.stop(max(0.0, (ends_ns - MONOTONIC.now_ns()) / 1e9))

    def after_fork(self) -> None:
        """Forget the threads of the parent."""
        self._threads.clear()

    def _run(self, thread: BackgroundThread, connect: Callable[[], None]) -> None:
        try:
            connect()
        finally:
            self._threads.discard(thread)


_connecting: PerProcess[ConnectThreads] = PerProcess(ConnectThreads)


@at_exit
def wait_for_connects() -> None:
    """Wait for pending connections before the interpreter exits: a thread inside OpenSSL would crash it."""
    _connecting.get().wait(_EXIT_SECONDS_MAX)


class PendingConnections:
    """Connections that are being made, and the callers that wait for a new or a returned one."""

    def __init__(
        self,
        connect: Callable[[float], RedisConnection],
        idle: deque[tuple[RedisConnection, int]],
        address: str,
        seconds: float,
    ) -> None:
        self.waiters: deque[AutoResetEvent] = deque()
        self.answered_ns = 0
        self._connect = connect
        self._idle = idle
        self._address = address
        self._seconds = seconds
        self._lock = Lock()
        self._in_progress: dict[object, int] = {}
        self._failed_since_ns = -1  # when the latest failed attempt began
        self._last_error: Exception = StateUnavailableError("no connection was attempted yet")

    def wait(self, began_ns: int, seconds: float) -> RedisConnection:
        """Return the next available connection, within ``seconds`` of ``began_ns`` or of the last answer.

        While the server answers other waiting callers, this one continues to wait for its turn, for at most
        the time that connecting may take.
        """
        bell, since_ns = AutoResetEvent(), MONOTONIC.now_ns()
        try:
            with self._lock:
                self.waiters.append(bell)
            return self._next_connection(bell, since_ns, _WaitBound(began_ns, seconds, self._seconds))
        finally:
            with self._lock, suppress(ValueError):
                self.waiters.remove(bell)
            if bell.is_set():  # this caller leaves without the connection it was woken for: wake another
                self.wake_one()

    def wake_one(self) -> None:
        """Wake one waiter: a connection is idle."""
        with self._lock:
            for bell in self.waiters:
                if not bell.is_set():
                    bell.set()
                    return

    def abandon(self) -> None:
        """Give up the connections that are being made; they are closed when they are ready."""
        with self._lock:
            self._in_progress.clear()

    def _next_connection(self, bell: AutoResetEvent, since_ns: int, bound: _WaitBound) -> RedisConnection:
        was_called, late_ns = True, MONOTONIC.now_ns() + _PROMISING_NS
        while True:
            if self._idle:
                try:
                    return self._idle.pop()[0]
                except IndexError:  # a caller that did not wait was faster
                    continue
            if self._failed_since_ns >= since_ns:  # an older attempt says nothing about the current server
                raise translate_connect_error(self._last_error, self._address) from self._last_error
            left_ns = bound.piece_ns(self.answered_ns)
            if left_ns <= 0:
                raise StateUnavailableError(f"still connecting to {self._address}; nothing was sent")
            is_late = MONOTONIC.now_ns() >= late_ns
            token = self._begin_connect() if was_called or is_late else None
            if token is None:
                was_called = bell.wait(left_ns / 1e9)
            elif not _connecting.get().start(partial(self._connect_one, token, self._seconds)):
                self._connect_one(token, bound.left_seconds())

    def _begin_connect(self) -> object | None:
        """Register one more attempt and return its token; ``None`` if enough attempts are in progress."""
        with self._lock:
            now_ns, life_ns = MONOTONIC.now_ns(), int(self._seconds * 1e9)
            ages_ns = {token: now_ns - since_ns for token, since_ns in self._in_progress.items()}
            for token, age_ns in ages_ns.items():
                if age_ns > _ABANDONED_AFTER * life_ns:  # its thread never ran: the caller was interrupted
                    del self._in_progress[token]
            promising = sum(age_ns < min(_PROMISING_NS, life_ns) for age_ns in ages_ns.values())
            if promising >= len(self.waiters) or len(self._in_progress) >= CONNECTS_MAX:
                return None
            token = object()
            self._in_progress[token] = now_ns
            return token

    def _connect_one(self, token: object, seconds: float) -> None:
        began_ns = MONOTONIC.now_ns()
        connection, error = self._try_connect(seconds)
        with self._lock:
            is_wanted = self._in_progress.pop(token, None) is not None
            if error is not None:
                self._last_error = error
                self._failed_since_ns = max(self._failed_since_ns, began_ns)
                for bell in self.waiters:
                    bell.set()
            elif connection is not None and is_wanted:
                self.answered_ns = MONOTONIC.now_ns()
                self._idle.append((connection, self.answered_ns))
                connection = None
        if connection is not None:
            connection.disconnect()
        elif error is None:
            self.wake_one()

    def _try_connect(self, seconds: float) -> tuple[RedisConnection | None, Exception | None]:
        try:
            return self._connect(seconds), None
        except Exception as error:
            return None, error


def _is_stale(connection: RedisConnection) -> bool:
    """Whether the server closed an idle connection, or sent something unexpected on it."""
    try:
        return bool(connection.can_read(timeout=0))
    except Exception:  # whatever the error, the connection is unusable
        return True
