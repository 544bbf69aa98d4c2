"""Rows that wait for a batch, and the moment at which a batch is due.

All rows of one key go to the same buffer, and a buffer has one batch in flight at a time, so rows of one key
stay in order. A row leaves its buffer only when it has been written or has become a dead letter; until then
no failure loses it.

This module reads no clock and takes no lock: ``now_ns`` is an argument, and the caller holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from comporta.limits.wait_queue import Waiter
from comporta.validators import require_integer, require_number

if TYPE_CHECKING:
    from comporta.pipeline.sinks.base import Row

ROWS_MAX: Final = 100_000
DELAY_SECONDS_MAX: Final = 3600.0
THREADS_MAX: Final = 64
CAPACITY_MAX: Final = 10_000_000
BATCHES_WAITING_DEFAULT: Final = 10
"""How many batches may wait for each thread, unless ``capacity`` says otherwise."""

RowKey = Callable[["Row"], Hashable]


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The validated options of a batch writer; see :class:`comporta.BatchWriter`."""

    max_rows: int
    max_delay: float
    capacity: int
    threads: int

    @classmethod
    def resolve(
        cls, max_rows: int, max_delay: float, capacity: int | None, threads: int | None, *, keyed: bool
    ) -> BatchOptions:
        """Validate the options and fill in defaults for those that are ``None``."""
        require_integer("max_rows", max_rows, 1, ROWS_MAX)
        require_number("max_delay", max_delay, 0.001, DELAY_SECONDS_MAX, unit="seconds")
        if threads is None:
            threads = 4 if keyed else 1
        require_integer("threads", threads, 1, THREADS_MAX)
        if threads > 1 and not keyed:
            raise ValueError(f"threads must be 1 without a key, to keep all rows in order, got {threads}")
        if capacity is None:
            capacity = BATCHES_WAITING_DEFAULT * max_rows * threads
        require_integer("capacity", capacity, max_rows, max(CAPACITY_MAX, max_rows))
        return cls(max_rows, float(max_delay), capacity, threads)

    @property
    def max_delay_ns(self) -> int:
        """``max_delay`` in nanoseconds."""
        return round(self.max_delay * 1e9)


class RowBuffer:
    """Rows in the order in which they were written; the first ``in_flight`` of them are in a batch.

    ``settled`` counts the rows that left the buffer. ``flush_mark`` is the count that a flush waits for.
    A ``paused`` buffer starts no batch until its error has been raised to a caller.
    """

    __slots__ = ("flush_mark", "in_flight", "oldest_ns", "paused", "rows", "settled", "waiter")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.in_flight = 0
        self.settled = 0
        self.flush_mark = 0
        self.oldest_ns = 0
        self.paused = False
        self.waiter = Waiter()

    def add(self, rows: Sequence[Row], max_rows: int, now_ns: Callable[[], int]) -> bool:
        """Add rows; true if the buffer's thread should wake up: they start a batch, or fill it.

        The rows are added last and in one step, so an interrupt before that leaves the buffer unchanged.
        """
        waiting = len(self.rows) - self.in_flight
        if waiting == 0:
            self.oldest_ns = now_ns()
        self.rows += rows
        return waiting == 0 or waiting < max_rows <= waiting + len(rows)

    def wait_ns(self, now_ns: int, options: BatchOptions, *, flush_now: bool) -> int | None:
        """Return the time until a batch is due, 0 if one is; ``None`` without rows."""
        if not self.rows:
            return None
        if flush_now or len(self.rows) >= options.max_rows or self.flush_mark > self.settled:
            return 0
        return max(0, self.oldest_ns + options.max_delay_ns - now_ns)

    def take(self, max_rows: int) -> list[Row]:
        """Return the next batch; its rows stay in the buffer until they are settled."""
        rows = self.rows[:max_rows]
        self.in_flight = len(rows)
        return rows

    def settle(self, count: int) -> None:
        """Remove the batch: its rows have been written or have become dead letters."""
        del self.rows[:count]
        self.in_flight = 0
        self.settled += count

    def settle_one(self, index: int) -> None:
        """Remove one row of the batch, which became a dead letter; the others go into the next batch."""
        del self.rows[index]
        self.in_flight = 0
        self.settled += 1

    def request_flush(self) -> int:
        """Make all rows due now; returns the value that ``settled`` reaches when they are settled."""
        self.flush_mark = self.settled + len(self.rows)
        return self.flush_mark


def group_by_buffer(
    rows: Sequence[Row], buffers: Sequence[RowBuffer], key: RowKey | None
) -> Iterable[tuple[RowBuffer, list[Row]]]:
    """Return which rows go into which buffer."""
    if key is None:
        return [(buffers[0], list(rows))]
    groups: dict[RowBuffer, list[Row]] = {}
    for row in rows:
        groups.setdefault(buffers[hash(key(row)) % len(buffers)], []).append(row)
    return groups.items()


def count_rows(buffers: Sequence[RowBuffer]) -> int:
    """Return how many rows wait or are in flight."""
    if len(buffers) == 1:
        return len(buffers[0].rows)
    return sum(len(buffer.rows) for buffer in buffers)
