"""How many calls may be in flight at one time, for the whole fleet: ``async with limit.slot(timeout=5):``.

A rate says how many calls begin; this says how many are under way. Each is a permit (``holding.py``) that is
given back at the end of the call, or ends by itself after ``hold_seconds`` when its holder was killed. Those
who wait in this process stand in line; a permit given back here is taken by the first of them at once, one
given back elsewhere is noticed within a tenth of a second. No process starves another: one whose first in
line has waited for about a quarter of a second goes before those that have not (``claims.py``).
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from types import TracebackType
from typing import cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta.chance import uniform
from comporta.clock import to_us
from comporta.errors import LimitReachedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.holding import (
    SHARED_MAX,
    AwaitPermit,
    GivePermit,
    Holder,
    Holders,
    LastTake,
    Permit,
    RenewPermit,
    Room,
    Taken,
    TakePermit,
)
from comporta.limits.verbs import check_timeout
from comporta.limits.waiting import Lines, in_line
from comporta.names import checked_name
from comporta.stores.base import Store
from comporta.stores.effects import Apply
from comporta.stores.failover import FailoverStore, Fallback, fallback_of
from comporta.stores.memory import MemoryStore
from comporta.stores.records import NEVER_US
from comporta.stores.urls import default_url, store_of
from comporta.threads import clear_up

MAX_CONCURRENT = 10_000
HOLD_SECONDS_MAX = 86_400.0

_LINE = ""
_ASK_AGAIN_US = (50_000, 100_000)
"""Those who wait ask again after some time between these: a permit may be given back on another machine."""

_LAST_LOOK_US = 1000
"""So long before its timeout somebody who waits asks for the last time."""

_GIVEN_AT_ONCE = 256
_in_use: WeakKeyDictionary[Store, WeakValueDictionary[str, ConcurrencyLimit]] = WeakKeyDictionary()


class ConcurrencyLimit:
    """At most ``max_concurrent`` calls in flight, among all who use the same state and name.

    A permit not given back ends after ``hold_seconds``: longer than any call takes, or ``renew`` it.
    However busy other processes are, the first in line of each is the next to get a permit when it has waited
    for about a quarter of a second, in the order in which they came; ``timeout=0`` passes none of them.
    ``state`` is a URL or a store; left out it is what the environment says, and else this machine. A worker
    without the shared state goes by its part: ``max_concurrent`` divided by the workers, one at the least.
    """

    def __init__(
        self,
        name: str,
        max_concurrent: int,
        *,
        hold_seconds: float = 60.0,
        state: str | Store | None = None,
    ) -> None:
        _check_numbers(max_concurrent, hold_seconds)
        state = default_url(distributed=True) if state is None else state
        self.store = store_of(state)
        _check_room(self.store, max_concurrent)
        self.name = checked_name(name)
        self.max_concurrent = max_concurrent
        self.hold_seconds = float(hold_seconds)
        self._room = Room(name, max_concurrent, to_us(hold_seconds))
        self._lines = Lines()
        self._owed: deque[Permit] = deque()
        self._told = 0
        _claim(self)
        if isinstance(self.store, FailoverStore):
            self.store.keeper.watch(self)
        self.sync = SyncConcurrencyLimit(self)

    @property
    def fallback(self) -> Fallback | None:
        """Since when and why this worker is on its own; nothing if it is not."""
        return fallback_of(self.store)

    async def acquire(self, timeout: float | None = 0) -> Permit | None:
        """Take a permit, waiting up to ``timeout`` seconds (``None``: for ever); nothing if none is free.

        Whoever gets one gives it back; ``slot`` does so by itself.
        """
        return await run_async(self.taking(timeout))

    async def release(self, permit: Permit) -> None:
        """Give a permit back; one that has ended already changes nothing."""
        await run_async(self.giving(permit))

    async def renew(self, permit: Permit) -> bool:
        """Hold a permit for ``hold_seconds`` from now; false if it has ended and may be another's."""
        return await run_async(self.renewing(permit))

    def slot(self, timeout: float | None = 0) -> Slot:
        """Return a context manager that holds a permit; no room within ``timeout``: ``LimitReachedError``."""
        return Slot(self, timeout)

    async def in_use(self) -> int:
        """Return how many permits are out."""
        return len(await run_async(self.listing()))

    async def holders(self) -> list[Holder]:
        """Return who holds permits, and for how many seconds at the most; the first to end first."""
        return await run_async(self.listing())

    def taking(self, timeout: float | None) -> Flow[Permit | None]:
        """Take a permit, in line with the others of this process."""
        check_timeout(timeout)
        if timeout == 0 and not self._lines.is_empty(_LINE):
            return None  # those who wait were here before
        permit, clock, doubtful = Permit.new(), self.store.clock, False

        def asked(kind: type[TakePermit]) -> Flow[Taken]:
            nonlocal doubtful
            alone = fallback_of(self.store) is not None
            taken: Taken = yield Apply(self.store, kind(self._room, permit))
            doubtful = doubtful if alone else fallback_of(self.store) is not None
            return taken

        if timeout == 0:
            granted = (yield from asked(TakePermit)).done
        else:
            deadline_us = NEVER_US if timeout is None else clock.now_ns() // 1000 + to_us(timeout)
            pace_us = 0

            def ask() -> Flow[int]:
                nonlocal pace_us
                left_us = deadline_us - clock.now_ns() // 1000
                taken = yield from asked(self._kind(left_us))
                pace_us = taken.pace_us or pace_us * 5 // 4  # whom it gave way to may be done at any moment
                left_us = deadline_us - clock.now_ns() // 1000
                return 0 if taken.done else _pause_us(taken, pace_us, left_us)

            granted = yield from in_line(self._lines, ask, clock, _LINE, timeout, spread=lambda: 0)
        if doubtful and not granted:
            self._owe(permit)  # the shared state may have granted it: only the answer did not come
        return permit if granted else None

    def _kind(self, left_us: int) -> type[TakePermit]:
        """Return how somebody in line asks who has so much time; the last one takes the claim along."""
        is_last = left_us <= 2 * _LAST_LOOK_US and self._lines.count(_LINE) < 2
        return LastTake if is_last else AwaitPermit

    def giving(self, permit: Permit) -> Flow[None]:
        """Give a permit back and call the first in line.

        Where that cannot be said the permit is lost until its deadline: no reason to spoil a call that is
        over. Without the shared state it may be one of those: then it is given back there later. So it is
        when whoever gives it back is cancelled: it may not have been said yet.
        """
        given = False
        try:
            yield Apply(self.store, GivePermit(self._room, permit))
            given = fallback_of(self.store) is None
        except StateError:
            pass
        finally:
            if not given:
                self._owe(permit)
            clear_up(self._lines.call_first, _LINE)

    def _owe(self, permit: Permit) -> None:
        """Have a permit given back by the keeper; no more are remembered than there can be."""
        if len(self._owed) < self.max_concurrent:
            self._owed.append(permit)

    def due(self) -> GivePermit | None:
        """Return what gives back, to the shared state, permits whose calls ended without it."""
        owed = tuple(islice(self._owed, _GIVEN_AT_ONCE))
        self._told = len(owed)
        return GivePermit(self._room, *owed) if owed else None

    def told(self, reply: object) -> None:
        """Forget the permits that were given back just now; only the keeper takes any out."""
        for _ in range(self._told):
            self._owed.popleft()

    def renewing(self, permit: Permit) -> Flow[bool]:
        """Hold a permit for longer."""
        taken: Taken = yield Apply(self.store, RenewPermit(self._room, permit))
        return taken.done

    def listing(self) -> Flow[list[Holder]]:
        """List who holds permits."""
        holders: list[Holder] = yield Apply(self.store, Holders(self._room))
        return holders

    def refusal(self) -> LimitReachedError:
        """Return the error for somebody who got no permit in time."""
        text = f"{self.name}: {self.max_concurrent} calls are in flight, no room for another in time"
        return LimitReachedError(text, self.name, _ASK_AGAIN_US[1] / 1e6)


class SyncConcurrencyLimit:
    """The verbs of a limit, blocking: ``limit.sync``."""

    __slots__ = ("_limit",)

    def __init__(self, limit: ConcurrencyLimit) -> None:
        self._limit = limit

    def acquire(self, timeout: float | None = 0) -> Permit | None:
        """Take a permit, waiting up to ``timeout`` seconds; nothing if there is none."""
        return run(self._limit.taking(timeout))

    def release(self, permit: Permit) -> None:
        """Give a permit back; one that has ended already changes nothing."""
        run(self._limit.giving(permit))

    def renew(self, permit: Permit) -> bool:
        """Hold a permit for ``hold_seconds`` from now; false if it has ended."""
        return run(self._limit.renewing(permit))

    def slot(self, timeout: float | None = 0) -> Slot:
        """Return a context manager that holds a permit: ``with limit.sync.slot():``."""
        return Slot(self._limit, timeout)

    def in_use(self) -> int:
        """Return how many permits are out."""
        return len(run(self._limit.listing()))

    def holders(self) -> list[Holder]:
        """Return who holds permits, and for how many seconds at the most; the first to end first."""
        return run(self._limit.listing())


class Slot:
    """Holds a permit for a body, in ``with`` or ``async with``; one body at a time."""

    __slots__ = ("_limit", "_permit", "_timeout", "_used")

    def __init__(self, limit: ConcurrencyLimit, timeout: float | None) -> None:
        self._limit = limit
        self._timeout = timeout
        self._permit: Permit | None = None
        self._used = False

    def __enter__(self) -> Permit:
        return run(self._taking())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run(self._giving())

    async def __aenter__(self) -> Permit:
        return await run_async(self._taking())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, GeneratorExit):
            clear_up(run, self._giving())  # whoever ends so can no longer wait
        else:
            await run_async(self._giving())

    def _taking(self) -> Flow[Permit]:
        if self._used:
            raise RuntimeError("this slot is in use: ask for another")
        self._used = True  # before the wait: another may come meanwhile, and the permit of one would be lost
        try:
            self._permit = yield from self._limit.taking(self._timeout)
        finally:
            self._used = self._permit is not None
        if self._permit is None:
            raise self._limit.refusal()
        return self._permit

    def _giving(self) -> Flow[None]:
        permit, self._permit, self._used = cast(Permit, self._permit), None, False
        yield from self._limit.giving(permit)


def _pause_us(taken: Taken, pace_us: int, left_us: int) -> int:
    """Return how long to wait before asking again; longer than there is time for means: give up."""
    if left_us <= 2 * _LAST_LOOK_US:
        return left_us + 1
    usual_us = round(uniform(*_ASK_AGAIN_US))
    return min(max(1, taken.wait_us), usual_us, pace_us or usual_us, left_us - _LAST_LOOK_US)


def _check_numbers(max_concurrent: int, hold_seconds: float) -> None:
    if isinstance(max_concurrent, bool) or not isinstance(max_concurrent, int):
        raise TypeError(f"max_concurrent must be an int, got {max_concurrent!r:.50}")
    if not 1 <= max_concurrent <= MAX_CONCURRENT:
        raise ValueError(f"max_concurrent must be 1 to {MAX_CONCURRENT}, got {max_concurrent}")
    if isinstance(hold_seconds, bool) or not isinstance(hold_seconds, int | float):
        raise TypeError(f"hold_seconds must be a number of seconds, got {hold_seconds!r:.50}")
    if not 0.01 <= hold_seconds <= HOLD_SECONDS_MAX:
        raise ValueError(f"hold_seconds must be 0.01 to {HOLD_SECONDS_MAX:g}, got {hold_seconds}")


def _check_room(store: Store, max_concurrent: int) -> None:
    if isinstance(store, FailoverStore):
        on_file = store.local
    else:
        on_file = hasattr(store, "bind") and not isinstance(store, MemoryStore)
    if on_file and max_concurrent > SHARED_MAX:
        raise ValueError(f"max_concurrent must be 1 to {SHARED_MAX} on shared://, got {max_concurrent}")


def _claim(limit: ConcurrencyLimit) -> None:
    """Refuse a name that means something else on the same state in this program."""
    names = _in_use.setdefault(limit.store, WeakValueDictionary())
    other = names.setdefault(limit.name, limit)
    if (other.max_concurrent, other.hold_seconds) != (limit.max_concurrent, limit.hold_seconds):
        raise ValueError(
            f"name {limit.name!r} is in use on this state for {other.max_concurrent} calls of "
            f"{other.hold_seconds:g} s, got {limit.max_concurrent} of {limit.hold_seconds:g} s"
        )
