"""The partitions that a process remembers: the callers that wait for each, and its last attempt to climb.

This module decides nothing: the buckets are in the store. So a partition without waiters may be forgotten at
any time, and the oldest one is forgotten beyond :data:`PARTITIONS_MAX`.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from comporta import fork_safety
from comporta.limits.key import normalize_key
from comporta.pipeline.throttle.operation import AcquireBoth, ThrottleLimits, ThrottleWaits
from comporta.pipeline.waiter import PipelineWaiter

PARTITIONS_MAX = 10_000
"""How many partitions a process remembers beyond those with waiters."""

WAITERS_MAX = 100_000
"""How many callers may wait for one throttle in one process; the next one is refused immediately."""


class ThrottleQueue:
    """Waiters in the order in which they came; changed only under the lock of the table.

    Leaving costs the same from any position: a hundred thousand waiters may be cancelled at once.
    """

    __slots__ = ("waiters",)

    def __init__(self) -> None:
        self.waiters: OrderedDict[PipelineWaiter, None] = OrderedDict()

    @property
    def first(self) -> PipelineWaiter | None:
        """The waiter whose turn it is; the caller holds the lock, so that the queue does not change."""
        return next(iter(self.waiters), None)

    def join(self, waiter: PipelineWaiter) -> None:
        """Enter at the end, unless it is in the queue."""
        self.drop_gone_head()
        self.waiters[waiter] = None

    def drop_gone_head(self) -> None:
        """Drop the first waiter if its event loop is closed, and wake the next one."""
        first = self.first
        if first is not None and first.is_gone:
            del self.waiters[first]
            self.wake_first()

    def first_alive(self) -> PipelineWaiter | None:
        """Return the first waiter whose event loop is open, and drop those before it."""
        while (first := self.first) is not None and first.is_gone:
            del self.waiters[first]
        return first

    def leave(self, waiter: PipelineWaiter) -> None:
        """Leave, served or not, and wake the waiter that is then first."""
        was_first = self.first is waiter
        self.waiters.pop(waiter, None)
        if was_first:
            self.wake_first()

    def wake_first(self) -> None:
        """Wake the first waiter; drop waiters that cannot be woken, which would block those behind them."""
        while (first := self.first) is not None and not first.wake():
            del self.waiters[first]


class Partition:
    """One partition: its key, its limit's name, its waiters, and when this process last tried to climb."""

    __slots__ = ("_limits", "_state_keys", "climb_tried_us", "key", "limit_name", "queue")

    def __init__(self, limits: ThrottleLimits, key: str) -> None:
        self._limits = limits
        self._state_keys = limits.state_keys(key)
        self.key = key
        self.limit_name = limits.partition_name(key)
        self.queue = ThrottleQueue()
        self.climb_tried_us: int | None = None

    def acquire_operation(self, cost: int) -> AcquireBoth:
        """Return the operation that acquires ``cost``."""
        return AcquireBoth(self._limits, self.key, cost, self._state_keys)


class PartitionTable:
    """The partitions of one throttle, and the queue for the global limit.

    The first waiter of a partition that waits for the global limit alone is in that second queue too. So
    small costs of other partitions cannot overtake a large one forever.
    """

    def __init__(self, limits: ThrottleLimits) -> None:
        self.lock = Lock()
        self.global_queue = ThrottleQueue()
        self.waiting = 0
        self._limits = limits
        self._partitions: dict[object, Partition] = {}
        self.find = self._partitions.get
        fork_safety.register(self)

    def __len__(self) -> int:
        """Return how many partitions the process remembers."""
        return len(self._partitions)

    def after_fork(self) -> None:
        """Leave the waiters to the parent process."""
        fork_safety.reinit_lock(self.lock)
        self.global_queue.waiters.clear()
        self._partitions.clear()
        self.waiting = 0

    def find_or_add(self, name: str) -> Partition:
        """Return the partition of this name, added if it is new.

        ``find`` looks up the name itself, so it finds only names that are their own key.
        """
        text = normalize_key(name)
        key = text if text == name else (text,)
        with self.lock:
            partition = self._partitions.get(key)
            if partition is None:
                partition = self._partitions[key] = Partition(self._limits, text)
            if len(self._partitions) > PARTITIONS_MAX + self.waiting:
                self._evict_oldest()
            return partition

    def join(self, partition: Partition, waiter: PipelineWaiter) -> bool:
        """Enter the queue of a partition; false if too many callers wait already."""
        with self.lock:
            if self.waiting >= WAITERS_MAX:
                return False
            self.waiting += 1
            partition.queue.join(waiter)
            return True

    def is_turn(self, partition: Partition, waiter: PipelineWaiter) -> bool:
        """Return whether it is this waiter's turn; the first of a partition enters the global queue, too."""
        with self.lock:
            partition.queue.drop_gone_head()
            if partition.queue.first is not waiter:
                return False
            self.global_queue.drop_gone_head()
            if self.global_queue.first in (None, waiter):
                return True
            self.global_queue.join(waiter)
            return False

    def update_global_queue(self, waiter: PipelineWaiter, waits: ThrottleWaits) -> None:
        """Enter the global queue if only the global limit refused; leave it if the partition refused too."""
        with self.lock:
            if waits.partition_us:
                self.global_queue.leave(waiter)
            else:
                self.global_queue.join(waiter)

    def leave(self, partition: Partition, waiter: PipelineWaiter) -> None:
        """Leave both queues.

        If callers wait for the global limit, the next waiter of the partition enters that queue without being
        woken: most waiters wait for that limit.
        """
        with self.lock:
            self.waiting -= 1
            was_first = partition.queue.first is waiter
            partition.queue.waiters.pop(waiter, None)
            self.global_queue.leave(waiter)
            if (
                was_first
                and self.global_queue.waiters
                and (following := partition.queue.first_alive()) is not None
            ):
                self.global_queue.join(following)
            elif was_first:
                partition.queue.wake_first()

    def _evict_oldest(self) -> None:
        """Forget the oldest partition that has no waiters."""
        for key, partition in self._partitions.items():
            if not partition.queue.waiters:
                del self._partitions[key]
                return
