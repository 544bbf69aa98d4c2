"""A global limit and one per partition, obeyed together: ``await throttle.acquire("partition")``.

Both are token buckets with a burst of a tenth of the limit, taken in one step or not at all (``levels.py``).
Errors of a partition lower its limit and successes raise it again, burst included, while the others go on.
Whoever waits stands in the line of its partition and holds no thread; each is woken in its turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from comporta.clock import to_seconds, to_us
from comporta.errors import LimitReachedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.adjust import Adjusted, Climb, Drop, Look
from comporta.limits.config import LimitConfig
from comporta.limits.key import printable
from comporta.limits.telling import tell
from comporta.limits.verbs import check_cost, check_timeout
from comporta.names import checked_name
from comporta.pipeline.places import Place
from comporta.pipeline.throttle.degrading import PartitionDegradation, check_number
from comporta.pipeline.throttle.levels import GRANTED, Levels, Settling, TakeBoth, Waits
from comporta.pipeline.throttle.partitions import Book, Partition
from comporta.pipeline.throttle.short_way import short_way
from comporta.steps import WHOLE, millionths
from comporta.stores.base import Operation, Store
from comporta.stores.effects import Apply
from comporta.stores.memory import MemoryStore
from comporta.stores.records import NEVER_US
from comporta.stores.urls import store_of
from comporta.threads import clear_up

R = TypeVar("R")

BURST = 0.1
"""What part of a limit may be taken at once, after nothing was asked for."""

LIMIT_MAX = 1e9
PER_MAX = 86_400.0
KEYS_MAX = 200_000
"""How many partitions a throttle on its own holds that are not settled; one more is refused by name."""

ASK_AGAIN_US = 1_000_000
"""Ask at least this often: a limit may be raised or resumed by somebody on another machine."""


class ThrottleStatistics(NamedTuple):
    """What this process has done: units granted, calls that waited and were refused; and who waits now."""

    granted: int
    waited: int
    refused: int
    waiting: int
    partitions: int


class HierarchicalThrottle:
    """At most ``global_limit`` in ``per`` seconds, and ``partition_limit`` for each partition.

    ::

        throttle = HierarchicalThrottle(20_000, 2_000)
        await throttle.acquire("partition-7")
        result = await throttle.execute("partition-7", 1, call)

    ``state`` is a URL or a store, and says who obeys together: left out, whoever uses this object. ``name``
    identifies the throttle in its state. ``degradation`` is a :class:`PartitionDegradation`, or ``None``.
    ``fallback`` is what each worker does while a shared state is out of reach, see :class:`LimitConfig`.
    """

    def __init__(
        self,
        global_limit: float,
        partition_limit: float,
        *,
        per: float = 1.0,
        state: str | Store | None = None,
        name: str | None = None,
        degradation: PartitionDegradation | None = PartitionDegradation(),  # noqa: B008 - it is frozen
        fallback: str = "share",
    ) -> None:
        check_number("per", per, PER_MAX)
        if degradation is not None and not isinstance(degradation, PartitionDegradation):
            raise TypeError(f"degradation must be a PartitionDegradation or None, got {degradation!r:.50}")
        whole = _bucket("global_limit", global_limit, per, fallback)
        partition = _bucket("partition_limit", partition_limit, per, fallback)
        made = f"throttle-{global_limit:g}-{partition_limit:g}-{per:g}".replace("+", "")
        self.name = made if name is None else checked_name(name)
        self.store = _opened(state)
        self.per, self.global_limit, self.partition_limit = per, global_limit, partition_limit
        self.degradation = degradation
        self.cost_max = min(whole.capacity, partition.capacity)
        self._numbers = partition.rule().numbers
        floor = WHOLE if degradation is None else millionths(degradation.floor)
        rule = partition.rule()
        self._levels = Levels(self.name, whole.rule(), rule, Settling(rule, floor), fallback)
        self._book = Book(self._levels)
        self._known, self._whole = self._book.known, self._book.whole
        self._short = short_way(self.store, self._levels) if isinstance(self.store, MemoryStore) else None
        self._granted = self._waited = self._refused = 0
        self.sync = SyncThrottle(self)

    async def acquire(self, partition: str, cost: int = 1, timeout: float | None = None) -> bool:
        """Take ``cost`` from both limits, waiting up to ``timeout`` seconds for it; ``None``: without bound.

        A cost may be as large as the smaller of the two bursts (``cost_max``). Where a partition is degraded
        and its burst is smaller than that, the cost waits for all of the burst and leaves a debt.
        """
        if self._short is not None and not timeout and type(cost) is int and 0 < cost <= self.cost_max:
            known = self._known(partition) if type(partition) is str else None
            if (
                known is not None
                and not known.line.places
                and not self._whole.places
                and self._short(known.text, known.name, cost) is GRANTED
            ):
                self._granted += cost
                return True
        return await run_async(self.acquiring(partition, cost, timeout))

    async def execute(
        self,
        partition: str,
        cost: int,
        fn: Callable[[], Awaitable[R]],
        *,
        timeout: float | None = None,
    ) -> R:
        """Acquire, call, and tell the partition what came of it; a ``LimitReachedError`` if not in time."""
        if not await self.acquire(partition, cost, timeout):
            raise self.refusal(partition, timeout)
        try:
            result = await fn()
        except Exception as error:
            await run_async(self.failing(partition, error))
            raise
        await self.record_success(partition)
        return result

    async def record_error(self, partition: str) -> None:
        """Lower a partition's limit by a step: what it stands for is overloaded, or refused."""
        await run_async(self.dropping(partition))

    async def record_success(self, partition: str) -> None:
        """Raise a partition's limit by a step, if it is lowered and it is time."""
        if self.may_climb(partition):
            await run_async(self.climbing(partition))

    async def current_limit(self, partition: str) -> float:
        """Return a partition's limit as it is in force now, in units per ``per`` seconds."""
        return await run_async(self.looking(partition))

    def statistics(self) -> ThrottleStatistics:
        """Tell what this process has done."""
        book = self._book
        done = (self._granted, self._waited, self._refused)
        return ThrottleStatistics(*done, book.waiting, len(book))

    async def aclose(self) -> None:
        """Close the store's connections; they open again when needed."""
        if hasattr(self.store, "aclose"):
            await self.store.aclose()

    # what both faces are made of ----------------------------------------------------------------------

    def acquiring(self, partition: str, cost: int, timeout: float | None) -> Flow[bool]:
        """The flow of ``acquire``."""
        self._check_cost(cost)
        check_timeout(timeout)
        known = self._partition(partition)
        take = known.taking(cost)
        if (
            not (known.line.places or self._whole.places)
            and (yield from self._asking(known, take)) == GRANTED
        ):
            return self._counted(cost)
        if timeout == 0:
            return self._refused_one()
        return (yield from self._in_line(known, take, timeout))

    def failing(self, partition: str, error: Exception) -> Flow[None]:
        """Lower the limit if this error is one that counts."""
        if self.degradation is not None and isinstance(error, self.degradation.errors):
            yield from self.dropping(partition)

    def dropping(self, partition: str) -> Flow[None]:
        """The flow of ``record_error``."""
        told = self.degradation
        if told is None:
            return
        known = self._partition(partition)
        known.tried_us = self._now_us()
        shares = (millionths(told.drop), millionths(told.floor))
        adjusted = yield from self._adjusting(Drop(known.name, self._numbers, *shares))
        if adjusted is not None and adjusted.changed:
            self._tell("degraded", known, "lowered", adjusted, "warning")

    def climbing(self, partition: str) -> Flow[None]:
        """The flow of ``record_success``."""
        told, known = self.degradation, self._partition(partition)
        if told is None:
            return
        known.tried_us = self._now_us()
        steps = (millionths(told.climb), to_us(told.every))
        adjusted = yield from self._adjusting(Climb(known.name, self._numbers, *steps))
        if adjusted is not None and adjusted.changed:
            with self._book.lock:
                known.line.call_first()
            self._tell("recovered", known, "raised", adjusted, "info")

    def may_climb(self, partition: str) -> bool:
        """Whether it is time to look if a partition may climb; whether it is lowered, its record knows."""
        if self.degradation is None:
            return False
        tried_us = self._partition(partition).tried_us
        return tried_us is None or not 0 <= self._now_us() - tried_us < to_us(self.degradation.every)

    def looking(self, partition: str) -> Flow[float]:
        """The flow of ``current_limit``."""
        look = Look(self._partition(partition).name, self._numbers)
        adjusted: Adjusted = yield Apply(self.store, look)
        return self.partition_limit * adjusted.share / WHOLE

    def refusal(self, partition: str, timeout: float | None) -> LimitReachedError:
        """Return the error for a call that was not made."""
        why = ": too many wait already" if timeout is None else f" within {timeout:g} s"
        text = f"{self.name}: no room for partition {printable(partition)}{why}"
        return LimitReachedError(text, self.name, self.per * self.cost_max / self.partition_limit)

    def _in_line(self, known: Partition, take: TakeBoth, timeout: float | None) -> Flow[bool]:
        """Stand in line; whoever's turn it is asks until both limits grant."""
        book, place = self._book, Place(self.store.clock)
        until_us = NEVER_US if timeout is None else self._now_us() + to_us(timeout)
        if not book.join(known, place):
            return self._refused_one()
        self._waited += 1
        try:
            while True:
                wait_us = None
                if book.is_turn_of(known, place):
                    waits = yield from self._asking(known, take)
                    if waits == GRANTED:
                        return self._counted(take.cost)
                    book.held_up(place, waits)
                    wait_us = waits.partition_us or waits.whole_us
                if not (yield from self._rest(place, wait_us, until_us)):
                    return self._refused_one()
        finally:
            clear_up(book.leave, known, place)

    def _rest(self, place: Place, wait_us: int | None, until_us: int) -> Flow[bool]:
        """Rest until called, or for as long as it takes; false at once if one may not wait so long."""
        left_us = until_us - self._now_us()
        if left_us <= 0 or (wait_us is not None and wait_us > left_us):
            return False
        if wait_us is not None:
            place.seconds = to_seconds(min(wait_us, ASK_AGAIN_US))
        else:
            place.seconds = None if until_us == NEVER_US else to_seconds(left_us)
        yield place
        place.renew()
        return True

    def _asking(self, known: Partition, take: TakeBoth) -> Flow[Waits]:
        waits = None if self._short is None else self._short(known.text, known.name, take.cost)
        if waits is None:
            waits = yield Apply(self.store, take)
        return waits

    def _adjusting(self, operation: Operation[Adjusted]) -> Flow[Adjusted | None]:
        """Change what is in force; where that cannot be done, the call that went wrong is not to blame."""
        try:
            adjusted: Adjusted = yield Apply(self.store, operation)
        except StateError:
            return None
        return adjusted

    def _partition(self, name: str) -> Partition:
        if not isinstance(name, str):
            raise TypeError(f"partition must be a str, got {name!r:.100}")
        if not name:
            raise ValueError("partition must not be empty, got ''")
        return self._known(name) or self._book.partition(name)

    def _check_cost(self, cost: int) -> None:
        check_cost(cost)
        if cost > self.cost_max:
            raise ValueError(f"cost must be at most the smaller burst, {self.cost_max}, got {cost}")

    def _counted(self, cost: int) -> bool:
        self._granted += cost
        return True

    def _refused_one(self) -> bool:
        self._refused += 1
        return False

    def _now_us(self) -> int:
        return self.store.clock.now_ns() // 1000

    def _tell(self, what: str, known: Partition, how: str, adjusted: Adjusted, severity: str) -> None:
        was, now = (self.partition_limit * share / WHOLE for share in (adjusted.before, adjusted.share))
        text = f"partition {printable(known.text)} {how} from {was:g} to {now:g} in {self.per:g} s"
        tell(what, self.name, f"{text}, of {self.partition_limit:g}", severity)


class SyncThrottle:
    """The verbs of a throttle, blocking: ``throttle.sync``."""

    __slots__ = ("_throttle",)

    def __init__(self, throttle: HierarchicalThrottle) -> None:
        self._throttle = throttle

    def acquire(self, partition: str, cost: int = 1, timeout: float | None = None) -> bool:
        """Take ``cost`` from both limits, waiting up to ``timeout`` seconds for it."""
        return run(self._throttle.acquiring(partition, cost, timeout))

    def execute(self, partition: str, cost: int, fn: Callable[[], R], *, timeout: float | None = None) -> R:
        """Acquire, call, and tell the partition what came of it."""
        throttle = self._throttle
        if not self.acquire(partition, cost, timeout):
            raise throttle.refusal(partition, timeout)
        try:
            result = fn()
        except Exception as error:
            run(throttle.failing(partition, error))
            raise
        self.record_success(partition)
        return result

    def record_error(self, partition: str) -> None:
        """Lower a partition's limit by a step."""
        run(self._throttle.dropping(partition))

    def record_success(self, partition: str) -> None:
        """Raise a partition's limit by a step, if it is lowered and it is time."""
        if self._throttle.may_climb(partition):
            run(self._throttle.climbing(partition))

    def current_limit(self, partition: str) -> float:
        """Return a partition's limit as it is in force now."""
        return run(self._throttle.looking(partition))


def _opened(state: str | Store | None) -> Store:
    if state is None:
        return MemoryStore(keys_max=KEYS_MAX)
    return store_of(state)


def _bucket(name: str, limit: float, per: float, fallback: str) -> LimitConfig:
    """Return a limit with a burst of a tenth of it, one at the least."""
    check_number(name, limit, LIMIT_MAX)
    return LimitConfig(limit / per, max(1, int(limit * BURST)), fallback=fallback)
