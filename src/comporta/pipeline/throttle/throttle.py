"""A global limit and one limit per partition, applied together: ``await throttle.acquire("partition")``.

Both are token buckets with a burst of a tenth of the limit; one operation acquires from both or from neither
(``operation.py``). Errors of a partition lower its limit and its burst, and successes raise them again; the
other partitions are not affected. Callers wait in the queue of their partition, and a waiting coroutine holds
no thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from comporta.clock import to_seconds, to_us
from comporta.errors import LimitReachedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.arguments import check_cost, check_timeout
from comporta.limits.config import LimitConfig
from comporta.limits.key import printable_text
from comporta.limits.overrides.notifications import publish_limit_event
from comporta.limits.overrides.operation import LowerByStep, OverrideReply, RaiseByStep, ReadOverride
from comporta.names import validate_name
from comporta.pipeline.throttle.degradation import PartitionDegradation
from comporta.pipeline.throttle.fast_path import fast_acquire
from comporta.pipeline.throttle.operation import (
    GRANTED,
    AcquireBoth,
    PartitionStateType,
    ThrottleLimits,
    ThrottleWaits,
)
from comporta.pipeline.throttle.partitions import Partition, PartitionTable
from comporta.pipeline.waiter import PipelineWaiter
from comporta.ramp import FULL_SHARE, millionths
from comporta.stores.base import Operation, Store
from comporta.stores.effects import Apply
from comporta.stores.memory import MemoryStore
from comporta.stores.records import NEVER_US
from comporta.stores.registry import resolve_store
from comporta.threads import run_cleanup
from comporta.validators import require_number

R = TypeVar("R")

BURST_SHARE = 0.1
"""The burst, as a fraction of the limit."""

LIMIT_MAX = 1e9
PER_MAX = 86_400.0
KEYS_MAX = 200_000
"""How many partitions with a bucket that is not full a throttle without ``state`` holds; more are refused."""

POLL_US = 1_000_000
"""The first waiter tries at least this often: another worker may raise or resume a limit."""


class ThrottleStatistics(NamedTuple):
    """What this process did: units granted, calls that waited or were refused, and how many wait now."""

    granted: int
    waited: int
    refused: int
    waiting: int
    partitions: int


class HierarchicalThrottle:
    """Grants at most ``global_limit`` per ``per`` seconds, and at most ``partition_limit`` to each partition.

    ::

        throttle = HierarchicalThrottle(20_000, 2_000)
        await throttle.acquire("partition-7")
        result = await throttle.execute("partition-7", 1, call)

    ``state`` is a URL or a store. All workers that use the same state share the limits; without one, the
    limits belong to this object. ``name`` identifies the throttle in its state. ``degradation`` is a
    :class:`PartitionDegradation`, or ``None``. ``fallback`` says what a worker does while a shared state is
    unreachable, see :class:`LimitConfig`. ``cost_max`` is the largest cost of one call: the smaller of the
    two bursts. ``throttle.sync`` has the same methods for threads.
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
        require_number("per", per, above=0, maximum=PER_MAX, unit="seconds")
        if degradation is not None and not isinstance(degradation, PartitionDegradation):
            raise TypeError(f"degradation must be a PartitionDegradation or None, got {degradation!r:.50}")
        global_config = _bucket_config("global_limit", global_limit, per, fallback)
        partition = _bucket_config("partition_limit", partition_limit, per, fallback)
        default_name = f"throttle-{global_limit:g}-{partition_limit:g}-{per:g}".replace("+", "")
        self.name = default_name if name is None else validate_name(name)
        self._store = _open_store(state)
        self.per, self.global_limit, self.partition_limit = per, global_limit, partition_limit
        self.degradation = degradation
        self.cost_max = min(global_config.capacity, partition.capacity)
        floor = FULL_SHARE if degradation is None else millionths(degradation.floor)
        strategy = partition.build_strategy()
        self._limits = ThrottleLimits(
            self.name,
            global_config.build_strategy(),
            strategy,
            PartitionStateType(strategy, floor),
            fallback,
        )
        self._params = strategy.params
        self._partitions = PartitionTable(self._limits)
        self._find_partition, self._global_queue = self._partitions.find, self._partitions.global_queue
        self._fast_acquire = fast_acquire(self._store.memory, self._limits)
        self._granted = self._waited = self._refused = 0
        self.sync = SyncThrottle(self)

    async def acquire(self, partition: str, cost: int = 1, timeout: float | None = None) -> bool:
        """Acquire ``cost`` from both limits, waiting at most ``timeout`` seconds; false if not granted.

        ``None`` waits without limit. A cost may be as large as ``cost_max``. If a partition is degraded and
        its burst is smaller than the cost, the call waits for the whole burst and leaves a debt.
        """
        if self._fast_acquire is not None and not timeout and type(cost) is int and 0 < cost <= self.cost_max:
            entry = self._find_partition(partition) if type(partition) is str else None
            if (
                entry is not None
                and not entry.queue.waiters
                and not self._global_queue.waiters
                and self._fast_acquire(entry.key, entry.limit_name, cost) is GRANTED
            ):
                self._granted += cost
                return True
        return await run_async(self._acquire_flow(partition, cost, timeout))

    async def execute(
        self,
        partition: str,
        cost: int,
        fn: Callable[[], Awaitable[R]],
        *,
        timeout: float | None = None,
    ) -> R:
        """Acquire, call ``fn``, record its success or error; ``LimitReachedError`` if not granted in time."""
        if not await self.acquire(partition, cost, timeout):
            raise self._refusal(partition, timeout)
        try:
            result = await fn()
        except Exception as error:
            await run_async(self._record_failure_flow(partition, error))
            raise
        await self.record_success(partition)
        return result

    async def record_error(self, partition: str) -> None:
        """Lower a partition's limit by one step: the system behind it is overloaded or refuses calls."""
        await run_async(self._record_error_flow(partition))

    async def record_success(self, partition: str) -> None:
        """Raise a partition's limit by one step, if it is lowered and a step is due."""
        if self._is_climb_due(partition):
            await run_async(self._record_success_flow(partition))

    async def current_limit(self, partition: str) -> float:
        """Return a partition's current limit, in units per ``per`` seconds."""
        return await run_async(self._current_limit_flow(partition))

    def statistics(self) -> ThrottleStatistics:
        """Return what this process did with the throttle."""
        partitions = self._partitions
        counts = (self._granted, self._waited, self._refused)
        return ThrottleStatistics(*counts, partitions.waiting, len(partitions))

    async def aclose(self) -> None:
        """Close the store's connections; they reopen when needed."""
        await self._store.aclose()

    # -- what both interfaces are made of

    def _acquire_flow(self, partition: str, cost: int, timeout: float | None) -> Flow[bool]:
        """The flow of ``acquire``."""
        self._check_cost(cost)
        check_timeout(timeout)
        entry = self._partition(partition)
        operation = entry.acquire_operation(cost)
        if (
            not (entry.queue.waiters or self._global_queue.waiters)
            and (yield from self._try_acquire_flow(entry, operation)) == GRANTED
        ):
            return self._count_granted(cost)
        if timeout == 0:
            return self._count_refused()
        return (yield from self._wait_flow(entry, operation, timeout))

    def _record_failure_flow(self, partition: str, error: Exception) -> Flow[None]:
        """Lower the limit if this error counts."""
        if self.degradation is not None and isinstance(error, self.degradation.errors):
            yield from self._record_error_flow(partition)

    def _record_error_flow(self, partition: str) -> Flow[None]:
        """The flow of ``record_error``."""
        degradation = self.degradation
        if degradation is None:
            return
        entry = self._partition(partition)
        entry.climb_tried_us = self._now_us()
        shares = (millionths(degradation.drop), millionths(degradation.floor))
        reply = yield from self._adjust_flow(LowerByStep(entry.limit_name, self._params, *shares))
        if reply is not None and reply.changed:
            self._publish_change("degraded", entry, "lowered", reply, "warning")

    def _record_success_flow(self, partition: str) -> Flow[None]:
        """The flow of ``record_success``."""
        degradation, entry = self.degradation, self._partition(partition)
        if degradation is None:
            return
        entry.climb_tried_us = self._now_us()
        steps = (millionths(degradation.climb), to_us(degradation.every))
        reply = yield from self._adjust_flow(RaiseByStep(entry.limit_name, self._params, *steps))
        if reply is not None and reply.changed:
            with self._partitions.lock:
                entry.queue.wake_first()
            self._publish_change("recovered", entry, "raised", reply, "info")

    def _is_climb_due(self, partition: str) -> bool:
        """Return whether a step up is due; only the override records whether the limit is lowered at all."""
        if self.degradation is None:
            return False
        tried_us = self._partition(partition).climb_tried_us
        return tried_us is None or not 0 <= self._now_us() - tried_us < to_us(self.degradation.every)

    def _current_limit_flow(self, partition: str) -> Flow[float]:
        """The flow of ``current_limit``."""
        operation = ReadOverride(self._partition(partition).limit_name, self._params)
        reply: OverrideReply = yield Apply(self._store, operation)
        return self.partition_limit * reply.share / FULL_SHARE

    def _refusal(self, partition: str, timeout: float | None) -> LimitReachedError:
        """Return the error of a call that was not granted."""
        reason = ": too many callers wait already" if timeout is None else f" within {timeout:g} s"
        text = f"{self.name}: no capacity for partition {printable_text(partition)}{reason}"
        return LimitReachedError(text, self.name, self.per * self.cost_max / self.partition_limit)

    def _wait_flow(self, entry: Partition, operation: AcquireBoth, timeout: float | None) -> Flow[bool]:
        """Wait in the queue of the partition; the waiter whose turn it is tries until both limits grant."""
        partitions, waiter = self._partitions, PipelineWaiter(self._store.clock)
        until_us = NEVER_US if timeout is None else self._now_us() + to_us(timeout)
        if not partitions.join(entry, waiter):
            return self._count_refused()
        self._waited += 1
        try:
            while True:
                wait_us = None
                if partitions.is_turn(entry, waiter):
                    waits = yield from self._try_acquire_flow(entry, operation)
                    if waits == GRANTED:
                        return self._count_granted(operation.cost)
                    partitions.update_global_queue(waiter, waits)
                    wait_us = waits.partition_us or waits.global_us
                if not (yield from self._sleep_flow(waiter, wait_us, until_us)):
                    return self._count_refused()
        finally:
            run_cleanup(partitions.leave, entry, waiter)

    def _sleep_flow(self, waiter: PipelineWaiter, wait_us: int | None, until_us: int) -> Flow[bool]:
        """Sleep until woken, or for the wait; false immediately if the wait is longer than the time left."""
        left_us = until_us - self._now_us()
        if left_us <= 0 or (wait_us is not None and wait_us > left_us):
            return False
        if wait_us is not None:
            waiter.timeout = to_seconds(min(wait_us, POLL_US))
        else:
            waiter.timeout = None if until_us == NEVER_US else to_seconds(left_us)
        yield waiter
        waiter.reset()
        return True

    def _try_acquire_flow(self, entry: Partition, operation: AcquireBoth) -> Flow[ThrottleWaits]:
        waits = None
        if self._fast_acquire is not None:
            waits = self._fast_acquire(entry.key, entry.limit_name, operation.cost)
        if waits is None:
            waits = yield Apply(self._store, operation)
        return waits

    def _adjust_flow(self, operation: Operation[OverrideReply]) -> Flow[OverrideReply | None]:
        """Change a partition's limit; if the store is unreachable, there is no change and no error."""
        try:
            reply: OverrideReply = yield Apply(self._store, operation)
        except StateError:
            return None
        return reply

    def _partition(self, name: str) -> Partition:
        if not isinstance(name, str):
            raise TypeError(f"partition must be a str, got {name!r:.100}")
        if not name:
            raise ValueError("partition must not be empty, got ''")
        return self._find_partition(name) or self._partitions.find_or_add(name)

    def _check_cost(self, cost: int) -> None:
        check_cost(cost)
        if cost > self.cost_max:
            raise ValueError(f"cost must be at most the smaller burst, {self.cost_max}, got {cost}")

    def _count_granted(self, cost: int) -> bool:
        self._granted += cost
        return True

    def _count_refused(self) -> bool:
        self._refused += 1
        return False

    def _now_us(self) -> int:
        return self._store.clock.now_ns() // 1000

    def _publish_change(
        self, kind: str, entry: Partition, verb: str, reply: OverrideReply, severity: str
    ) -> None:
        before, now = (self.partition_limit * share / FULL_SHARE for share in (reply.before, reply.share))
        text = f"partition {printable_text(entry.key)} {verb} from {before:g} to {now:g} in {self.per:g} s"
        publish_limit_event(kind, self.name, f"{text}, of {self.partition_limit:g}", severity)


class SyncThrottle:
    """The methods of a throttle for threads: ``throttle.sync``."""

    __slots__ = ("_throttle",)

    def __init__(self, throttle: HierarchicalThrottle) -> None:
        self._throttle = throttle

    def acquire(self, partition: str, cost: int = 1, timeout: float | None = None) -> bool:
        """Acquire ``cost`` from both limits, waiting at most ``timeout`` seconds; false if not granted."""
        return run(self._throttle._acquire_flow(partition, cost, timeout))

    def execute(self, partition: str, cost: int, fn: Callable[[], R], *, timeout: float | None = None) -> R:
        """Acquire, call ``fn`` and record its success or error."""
        throttle = self._throttle
        if not self.acquire(partition, cost, timeout):
            raise throttle._refusal(partition, timeout)
        try:
            result = fn()
        except Exception as error:
            run(throttle._record_failure_flow(partition, error))
            raise
        self.record_success(partition)
        return result

    def record_error(self, partition: str) -> None:
        """Lower a partition's limit by one step."""
        run(self._throttle._record_error_flow(partition))

    def record_success(self, partition: str) -> None:
        """Raise a partition's limit by one step, if it is lowered and a step is due."""
        if self._throttle._is_climb_due(partition):
            run(self._throttle._record_success_flow(partition))

    def current_limit(self, partition: str) -> float:
        """Return a partition's current limit."""
        return run(self._throttle._current_limit_flow(partition))


def _open_store(state: str | Store | None) -> Store:
    if state is None:
        return MemoryStore(keys_max=KEYS_MAX)
    return resolve_store(state)


def _bucket_config(name: str, limit: float, per: float, fallback: str) -> LimitConfig:
    """Return the configuration of a limit with a burst of a tenth of it, at least 1."""
    require_number(name, limit, above=0, maximum=LIMIT_MAX)
    return LimitConfig(limit / per, max(1, int(limit * BURST_SHARE)), fallback=fallback)
