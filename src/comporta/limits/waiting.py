"""Waiting for a limit: who came first is served first, and nobody sleeps past their timeout.

The waiters of one key in one process stand in a line, threads and coroutines alike; only the first of
them asks the store. The flow below is the one text of that for both worlds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Lock

from comporta import forks
from comporta.clock import Clock, to_seconds, to_us
from comporta.flow import Flow
from comporta.stores.records import NEVER_US
from comporta.threads import Bell, clear_up

WAITERS_MAX = 100_000
"""How many may stand in one line; the next one is refused at once."""

ASK_AGAIN_US = 1_000_000
"""Ask at least this often: a limit may be raised, reset or resumed by somebody on another machine."""

SPREAD_US_MAX = 250_000
"""Over how much time those who wait for the end of a pause come back, at the most."""

_LONGEST_REST_US = 3_600_000_000


class Ticket:
    """A place in a line, and a way to call whoever holds it."""

    __slots__ = ("_called", "_lock", "_wake", "gone")

    def __init__(self) -> None:
        self._lock = Lock()
        self._called = False
        self._wake: Callable[[], object] | None = None
        self.gone: Callable[[], bool] = _never

    def call(self) -> bool:
        """Wake the holder, now or when it starts to wait; false if nothing can wake it any more."""
        with self._lock:
            self._called = True
            wake = self._wake
        try:
            if wake is not None:
                wake()
        except RuntimeError:  # its event loop was closed just now
            self.gone = _always
            return False
        return True

    def listen(self, wake: Callable[[], object], gone: Callable[[], bool] | None = None) -> bool:
        """Be woken by the next call; true if there was one already, which this takes.

        ``gone`` tells that nobody listens any more: an event loop may be closed with those who wait in it.
        """
        with self._lock:
            called, self._called = self._called, False
            self._wake = None if called else wake
            self.gone = gone or _never
        return called

    def deaf(self) -> None:
        """Stop listening."""
        with self._lock:
            self._wake = None
            self._called = False


class Lines:
    """Those who wait, one line for each key, in the order in which they came.

    ``by_key`` is there to be looked at (is anybody waiting?) by the hot path, which cannot afford a call.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, deque[Ticket]] = {}
        self._lock = Lock()
        forks.register(self)

    def after_fork(self) -> None:
        """Leave the parent's waiters to the parent."""
        self.by_key.clear()
        forks.renew(self._lock)

    def join(self, key: str) -> Ticket | None:
        """Stand at the end of a line; nothing if it is too long."""
        with self._lock:
            self._strike(key)
            line = self.by_key.setdefault(key, deque())
            if len(line) >= WAITERS_MAX:
                return None
            ticket = Ticket()
            line.append(ticket)
        return ticket

    def is_first(self, key: str, ticket: Ticket) -> bool:
        """Whether it is this one's turn."""
        return self.by_key[key][0] is ticket

    def is_empty(self, key: str) -> bool:
        """Whether nobody waits."""
        if key not in self.by_key:
            return True
        with self._lock:
            self._strike(key)
            return key not in self.by_key

    def count(self, key: str) -> int:
        """Return how many stand in a line."""
        return len(self.by_key.get(key, ()))

    def leave(self, key: str, ticket: Ticket) -> None:
        """Go away, served or not; whoever is first now is called."""
        with self._lock:
            line = self.by_key.get(key)
            if line is None or ticket not in line:  # struck: its event loop was closed
                return
            line.remove(ticket)
            if not line:
                del self.by_key[key]
        self.call_first(key)

    def call_all_first(self) -> None:
        """Let the first of every line ask at once."""
        for key in list(self.by_key):
            self.call_first(key)

    def call_first(self, key: str) -> None:
        """Let the first of a line ask at once: there may be room now."""
        first = self._first(key)
        while first is not None and not first.call():
            first = self._first(key)

    def _first(self, key: str) -> Ticket | None:
        with self._lock:
            self._strike(key)
            line = self.by_key.get(key)
            return line[0] if line else None

    def _strike(self, key: str) -> None:
        """Strike those at the head who can never leave, or nobody behind them would be served."""
        line = self.by_key.get(key)
        if line is None:
            return
        while line and line[0].gone():
            line.popleft()
        if not line:
            del self.by_key[key]


def _never() -> bool:
    return False


def _always() -> bool:
    return True


class Rest:
    """Effect: let time pass, but no longer than until the ticket is called."""

    __slots__ = ("_clock", "_seconds", "_ticket")

    def __init__(self, clock: Clock, ticket: Ticket, seconds: float | None) -> None:
        self._clock = clock
        self._ticket = ticket
        self._seconds = seconds

    def block(self) -> None:
        """Hold the thread."""
        bell = Bell()
        if not self._ticket.listen(bell.set):
            try:
                self._clock.wait(bell, self._seconds)
            finally:
                self._ticket.deaf()

    async def wait(self) -> None:
        """Hold nothing."""
        import asyncio  # noqa: PLC0415 - see clock.py

        loop = asyncio.get_running_loop()
        event = asyncio.Event()
        if not self._ticket.listen(lambda: loop.call_soon_threadsafe(event.set), loop.is_closed):
            try:
                await self._clock.wait_async(event, self._seconds)
            finally:
                self._ticket.deaf()


def in_line(
    lines: Lines,
    ask: Callable[[], Flow[int]],
    clock: Clock,
    key: str,
    timeout: float | None,
    *,
    spread: Callable[[], int],
) -> Flow[bool]:
    """Wait in line, then for the limit; true if it was granted within the timeout.

    ``spread`` tells how many microseconds to come later than one could: after a pause all would come at once.
    """
    deadline_us = NEVER_US if timeout is None else clock.now_ns() // 1000 + to_us(timeout)
    ticket = lines.join(key)
    if ticket is None:
        return False
    try:
        while not lines.is_first(key, ticket):
            left_us = deadline_us - clock.now_ns() // 1000
            if left_us <= 0:
                return False
            yield Rest(clock, ticket, to_seconds(min(left_us, _LONGEST_REST_US)))
        while True:
            wait_us = yield from ask()
            if wait_us == 0:
                return True
            left_us = deadline_us - clock.now_ns() // 1000
            if wait_us > left_us:
                return False
            if wait_us <= ASK_AGAIN_US:
                wait_us += min(spread(), left_us - wait_us)
            else:
                wait_us = ASK_AGAIN_US
            yield Rest(clock, ticket, to_seconds(wait_us))
    finally:
        clear_up(lines.leave, key, ticket)
