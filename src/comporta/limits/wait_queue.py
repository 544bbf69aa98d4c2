"""Waiting for a limit: callers are served in order, and none sleeps past its timeout.

The waiting threads and coroutines of one key in one process form a queue, and only the first of them calls
the store. Callers are served in order of arrival, except that higher classes go first and owners take turns
(``wait_order.py``). ``wait_flow`` serves threads and coroutines from one implementation.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from comporta import fork_safety
from comporta.clock import Clock, to_seconds, to_us
from comporta.flow import Flow, running_loop
from comporta.limits.claims import RETRY_EVERY_US, ClaimAttempt
from comporta.limits.key import DIGEST_PREFIX, PLAIN_BYTES_MAX, LimitKey, normalize_key
from comporta.limits.priority import DEFAULT_CALLER, Caller
from comporta.limits.wait_order import Pace, Units, WaitOrder
from comporta.runtime import RUNTIME
from comporta.stores.records import NEVER_US
from comporta.threads import AutoResetEvent, run_cleanup

WAITERS_MAX = 100_000
"""How many callers may wait in one queue; the next one is refused at once."""

TIMEOUT_MAX = 366 * 86_400
"""How many seconds a caller may wait."""

PAUSE_JITTER_US_MAX = 250_000
"""Callers that wait for the end of a pause retry within this time after it."""

_WAIT_US_MAX = 3_600_000_000

_PLAIN_KEY_CHARS_MAX = PLAIN_BYTES_MAX // 4
"""A key of at most this many characters is never replaced by its digest because of its length."""


class Waiter:
    """A caller in a wait queue, the units that it wants, and a way to wake it.

    ``since_us`` is when it joined the queue, ``deadline_us`` when it stops waiting. ``is_late`` is true if it
    cannot be served by then.
    """

    __slots__ = (
        *("_lock", "_on_wake", "_woken", "cost", "deadline_us"),
        *("is_gone", "is_late", "owner", "rank", "since_us"),
    )

    def __init__(
        self,
        caller: Caller = DEFAULT_CALLER,
        since_us: int = 0,
        cost: Units = 1,
        deadline_us: int = NEVER_US,
    ) -> None:
        self.rank, self.owner = caller
        self.since_us = since_us
        self.deadline_us = deadline_us
        self.cost = cost
        self.is_late = False
        self._lock = Lock()
        self._woken = False
        self._on_wake: Callable[[], object] | None = None
        self.is_gone: Callable[[], bool] = _never

    def wake(self) -> bool:
        """Wake the caller, now or as soon as it waits; false if nothing can wake it any more."""
        with self._lock:
            self._woken = True
            on_wake = self._on_wake
        try:
            if on_wake is not None:
                on_wake()
        except RuntimeError:  # its event loop was closed just now
            self.is_gone = _always
            return False
        return True

    def listen(self, on_wake: Callable[[], object], is_gone: Callable[[], bool] | None = None) -> bool:
        """Call ``on_wake`` at the next ``wake``; true, resetting the wake-up, if it has already come.

        ``is_gone`` returns whether the caller can no longer be woken, because its event loop was closed.
        """
        with self._lock:
            woken, self._woken = self._woken, False
            self._on_wake = None if woken else on_wake
            self.is_gone = is_gone or _never
        return woken

    def stop_listening(self) -> None:
        """Remove the callback and any wake-up."""
        with self._lock:
            self._on_wake = None
            self._woken = False


class WaitQueue:
    """The waiting callers of each key, in the order in which they are served.

    ``waiters_by_key`` is public so that the fast path can check without a call whether any caller waits.
    ``claimant`` identifies the queue, among those of other processes, in claims (``claims.py``).
    ``_all_plain`` is true if no caller ever waited for a key that callers may pass in another form.
    """

    def __init__(self) -> None:
        self.waiters_by_key: dict[str, WaitOrder[Waiter]] = {}
        self.claimant = _new_claimant()
        self._all_plain = True
        self._lock = Lock()
        fork_safety.register(self)

    def after_fork(self) -> None:
        """Leave the parent's waiters to the parent."""
        self.waiters_by_key.clear()
        self.claimant = _new_claimant()
        fork_safety.reinit_lock(self._lock)

    def join(
        self,
        key: str,
        caller: Caller = DEFAULT_CALLER,
        now_us: int = 0,
        cost: Units = 1,
        deadline_us: int = NEVER_US,
    ) -> Waiter | None:
        """Add a caller to a queue; ``None`` if the queue is full."""
        with self._lock:
            self._drop_gone(key)
            waiters = self.waiters_by_key.get(key) or WaitOrder()
            if len(waiters) >= WAITERS_MAX:
                return None
            waiter = Waiter(caller, now_us, cost, deadline_us)
            waiters.add(waiter)
            if self._all_plain and not _is_plain(key):
                self._all_plain = False  # before other threads see the queue
            self.waiters_by_key[key] = waiters
        return waiter

    def set_pace(self, key: str, pace: Pace) -> None:
        """Record when the limit grants the requests of the callers of a queue.

        When the pace becomes known, callers that have already joined but would be served too late stop
        waiting.
        """
        with self._lock:
            waiters = self.waiters_by_key.get(key)
            if waiters is None:
                return
            late = waiters.late_waiters(pace) if waiters.pace is None else []
            waiters.pace = pace
        for waiter in late:
            waiter.is_late = True
            waiter.wake()

    def earliest_us(self, key: str, cost: Units, caller: Caller = DEFAULT_CALLER) -> int:
        """Return when the limit can grant ``cost`` after everything served before it; 0 if unknown."""
        if key not in self.waiters_by_key:
            return 0
        with self._lock:
            self._drop_gone(key)
            waiters = self.waiters_by_key.get(key)
            if waiters is None or waiters.pace is None:
                return 0
            ahead = waiters.units_ahead(caller)
            return 0 if ahead is None else waiters.pace(ahead + cost)

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Whether it is this caller's turn."""
        with self._lock:
            waiters = self.waiters_by_key.get(key)
            return waiters is not None and waiters.first() is waiter

    def is_empty(self, key: str, rank: int | None = None) -> bool:
        """Whether no caller of this class or a higher one waits; ``None`` stands for any class."""
        if key not in self.waiters_by_key:
            return True
        with self._lock:
            self._drop_gone(key)
            waiters = self.waiters_by_key.get(key)
            return waiters is None or (rank is not None and not waiters.precedes(rank))

    def oldest_since_us(self, key: str, rank: int, now_us: int) -> int:
        """Return since when the oldest waiter of a class has been waiting; now, if none waits."""
        with self._lock:
            waiters = self.waiters_by_key.get(key)
            return now_us if waiters is None else waiters.oldest_since_us(rank, now_us)

    def claim_attempt(self, key: str, rank: int, now_us: int, deadline_us: int) -> ClaimAttempt:
        """Return the place of this process's first waiter of a class among those of other processes."""
        waited_us = now_us - self.oldest_since_us(key, rank, now_us)
        left_us = max(-1, min(deadline_us - now_us, to_us(TIMEOUT_MAX)))
        return ClaimAttempt(self.claimant, rank, waited_us, left_us)

    def may_have(self, key: LimitKey | str | None) -> bool:
        """Whether callers wait for a key that may not be in the form in which queues are kept."""
        if type(key) is str and (self._all_plain or _is_plain(key)):
            return key in self.waiters_by_key
        return normalize_key(key) in self.waiters_by_key

    def count(self, key: str) -> int:
        """Return how many callers wait."""
        return len(self.waiters_by_key.get(key, ()))

    def count_by_rank(self) -> dict[int, int]:
        """Return how many callers of each class wait, for any key."""
        counts: dict[int, int] = {}
        if self.waiters_by_key:
            with self._lock:
                for waiters in self.waiters_by_key.values():
                    for rank, count in waiters.count_by_rank().items():
                        counts[rank] = counts.get(rank, 0) + count
        return counts

    def leave(self, key: str, waiter: Waiter) -> None:
        """Remove a caller, served or not, and wake the caller that is now first."""
        with self._lock:
            waiters = self.waiters_by_key.get(key)
            if waiters is None or waiter not in waiters:  # dropped because its event loop was closed
                return
            waiters.remove(waiter)
            if not waiters:
                del self.waiters_by_key[key]
        self.wake_first(key)

    def wake_all_first(self) -> None:
        """Wake the first caller of every queue."""
        for key in list(self.waiters_by_key):
            self.wake_first(key)

    def wake_first(self, key: str) -> None:
        """Wake the first caller of a queue, because the limit may grant its request now."""
        first = self._first(key)
        while first is not None and not first.wake():
            first = self._first(key)

    def _first(self, key: str) -> Waiter | None:
        with self._lock:
            self._drop_gone(key)
            waiters = self.waiters_by_key.get(key)
            return waiters.first() if waiters else None

    def _drop_gone(self, key: str) -> None:
        """Drop callers at the head that can never leave, because they would block the callers behind them."""
        waiters = self.waiters_by_key.get(key)
        if waiters is None:
            return
        while waiters and waiters.first().is_gone():
            waiters.remove(waiters.first())
        if not waiters:
            del self.waiters_by_key[key]


def _is_plain(key: str) -> bool:
    """Whether a key is certainly in the form in which queues are kept: not empty and not a digest."""
    return 0 < len(key) <= _PLAIN_KEY_CHARS_MAX and key[0] != DIGEST_PREFIX


def _new_claimant() -> int:
    return int.from_bytes(RUNTIME.random_bytes(6)) or 1  # exact in Lua, whose numbers are doubles


def _never() -> bool:
    return False


def _always() -> bool:
    return True


class WaitForWake:
    """Effect: wait for some time, or until the waiter is woken."""

    __slots__ = ("_clock", "_seconds", "_waiter")

    def __init__(self, clock: Clock, waiter: Waiter, seconds: float | None) -> None:
        self._clock = clock
        self._waiter = waiter
        self._seconds = seconds

    def block(self) -> None:
        """Wait on this thread."""
        event = AutoResetEvent()
        if not self._waiter.listen(event.set):
            try:
                self._clock.wait(event, self._seconds)
            finally:
                self._waiter.stop_listening()

    async def wait(self) -> None:
        """Wait without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - see clock.py

        loop = running_loop()
        event = asyncio.Event()
        if not self._waiter.listen(lambda: loop.call_soon_threadsafe(event.set), loop.is_closed):
            try:
                await self._clock.wait_async(event, self._seconds)
            finally:
                self._waiter.stop_listening()


def wait_flow(
    queue: WaitQueue,
    acquire_flow: Callable[[], Flow[int]],
    clock: Clock,
    key: str,
    timeout: float | None,
    *,
    jitter_us: Callable[[], int],
    cost: Units = 1,
    pace_after: Callable[[int, int], Pace] | None = None,
    caller: Caller = DEFAULT_CALLER,
) -> Flow[bool]:
    """Wait for a turn in the queue, then for the limit; true if the limit granted it within the timeout.

    ``acquire_flow`` tries once and returns the wait in µs, 0 if granted. ``jitter_us`` returns by how many µs
    to delay a retry, because otherwise all waiting callers would retry at once after a pause. ``pace_after``
    returns the pace of the limit, given the time and the wait of a refusal: a caller that would be served too
    late does not wait.
    """
    now_us = clock.now_ns() // 1000
    deadline_us = NEVER_US if timeout is None else now_us + to_us(timeout)
    if queue.earliest_us(key, cost, caller) > deadline_us:
        return False
    waiter = queue.join(key, caller, now_us, cost, deadline_us)
    if waiter is None:
        return False
    try:
        while True:
            if not queue.is_first(key, waiter):  # a caller of a higher class may come first at any time
                left_us = deadline_us - clock.now_ns() // 1000
                if left_us <= 0 or waiter.is_late:
                    return False
                yield WaitForWake(clock, waiter, to_seconds(min(left_us, _WAIT_US_MAX)))
                continue
            wait_us = yield from acquire_flow()
            if wait_us == 0:
                return True
            now_us = clock.now_ns() // 1000
            if pace_after is not None:
                queue.set_pace(key, pace_after(now_us, wait_us))
            left_us = deadline_us - now_us
            if wait_us > left_us:
                return False
            if wait_us <= RETRY_EVERY_US:
                wait_us += min(jitter_us(), left_us - wait_us)
            else:
                wait_us = RETRY_EVERY_US
            yield WaitForWake(clock, waiter, to_seconds(wait_us))
    finally:
        run_cleanup(queue.leave, key, waiter)
