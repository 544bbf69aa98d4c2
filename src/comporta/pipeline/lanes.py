"""Rows on their way into batches: which are waiting, which are being written, when a batch is due.

Rows of one key are always in the same lane, and a lane has one batch under way at a time: so they stay in
order. A row leaves its lane when it is confirmed and not before; until then nothing that happens loses it.

No clock is read here and no lock taken: ``now_ns`` is an argument, and whoever uses a lane holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from comporta.limits.waiting import Ticket
from comporta.retry.backoff import check_range

if TYPE_CHECKING:
    from comporta.pipeline.sinks.base import Row

ROWS_MAX: Final = 100_000
DELAY_SECONDS_MAX: Final = 3600.0
THREADS_MAX: Final = 64
CAPACITY_MAX: Final = 10_000_000
BATCHES_WAITING: Final = 10
"""How many batches may wait for each thread, unless told otherwise."""

Key = Callable[["Row"], Hashable]


@dataclass(frozen=True, slots=True)
class Batching:
    """How rows are gathered: the bounds, checked once. See :class:`comporta.BatchWriter`."""

    max_rows: int
    max_delay: float
    capacity: int
    threads: int

    @classmethod
    def of(
        cls, max_rows: int, max_delay: float, capacity: int | None, threads: int | None, *, keyed: bool
    ) -> Batching:
        """Fill in what was left out."""
        _check_count("max_rows", max_rows, 1, ROWS_MAX)
        check_range("max_delay", max_delay, 0.001, DELAY_SECONDS_MAX)
        if threads is None:
            threads = 4 if keyed else 1
        _check_count("threads", threads, 1, THREADS_MAX)
        if threads > 1 and not keyed:
            raise ValueError(f"threads must be 1 where there is no key (one order, one line), got {threads}")
        if capacity is None:
            capacity = BATCHES_WAITING * max_rows * threads
        _check_count("capacity", capacity, max_rows, max(CAPACITY_MAX, max_rows))
        return cls(max_rows, float(max_delay), capacity, threads)

    @property
    def max_delay_ns(self) -> int:
        """The delay as it is compared."""
        return round(self.max_delay * 1e9)


class Lane:
    """Rows in the order in which they came; the first ``taken`` of them are being written."""

    __slots__ = ("asked", "done", "rows", "since_ns", "stopped", "taken", "ticket")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.taken = 0
        self.done = 0
        self.asked = 0
        self.since_ns = 0
        self.stopped = False
        self.ticket = Ticket()

    def add(self, rows: Sequence[Row], max_rows: int, now_ns: Callable[[], int]) -> bool:
        """Take rows in; true if whoever writes should look: they began a batch, or filled it.

        The rows themselves go in last, in one step: what is interrupted in between has changed nothing.
        """
        waiting = len(self.rows) - self.taken
        if waiting == 0:
            self.since_ns = now_ns()
        self.rows += rows
        return waiting == 0 or waiting < max_rows <= waiting + len(rows)

    def wait_ns(self, now_ns: int, batching: Batching, *, hurry: bool) -> int | None:
        """Return how long until a batch is due, 0 if it is; nothing without rows."""
        if not self.rows:
            return None
        if hurry or len(self.rows) >= batching.max_rows or self.asked > self.done:
            return 0
        return max(0, self.since_ns + batching.max_delay_ns - now_ns)

    def take(self, max_rows: int) -> list[Row]:
        """Return the next batch; it stays here until it is settled."""
        rows = self.rows[:max_rows]
        self.taken = len(rows)
        return rows

    def settle(self, count: int) -> None:
        """Let go of the batch: it is written, or in letters."""
        del self.rows[:count]
        self.taken = 0
        self.done += count

    def drop(self, index: int) -> None:
        """Let go of one row of the batch, which is in a letter; the others are to be taken again."""
        del self.rows[index]
        self.taken = 0
        self.done += 1

    def ask(self) -> int:
        """Have all there is written without waiting for more; returns the mark it is done at."""
        self.asked = self.done + len(self.rows)
        return self.asked


def _check_count(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r:.50}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {value}")
