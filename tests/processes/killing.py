"""Killing processes in the middle of updates while two others go on; the short and the long test use it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Any

from tests.processes.books import Book, is_whole
from tests.processes.fleet import Worker, opened
from tests.processes.jobs import BURSTS, COLUMNS, LIMITS, LOG, NAMES, PACED, ROUNDS, SLOW, STOP, limiter_of

from comporta import BaseLimiter
from comporta.stores.shared import SharedStore

SURVIVORS = 2
GOES_ON_SECONDS = 60.0


class Inspector:
    """Looks at everything the workers share, from a process that was never killed."""

    def __init__(self, store: SharedStore, book: Book, began: float) -> None:
        self.store = store
        self.book = book
        self.began = began
        self.limiters: dict[int, BaseLimiter] = {
            column: limiter_of(store, limit, NAMES[column]) for column, limit in LIMITS.items()
        }

    def look(self, under_way: int) -> None:
        """See that no state is torn; at most ``under_way`` grants are not in the books (yet)."""
        for column, limiter in self.limiters.items():
            capacity = limiter.config.capacity
            noted = self.book.total(column)
            seen, stats = limiter.sync.peek("k"), limiter.sync.stats("k")
            noted_after = self.book.total(column)
            assert seen.limit == capacity
            assert 0 <= seen.remaining <= capacity
            assert 0 <= seen.reset_after <= (limiter.config.window or capacity / limiter.config.rate)
            granted = stats.requests_last_minute
            assert 0 <= granted <= noted_after + under_way, (NAMES[column], granted, noted_after, under_way)
            if column in (SLOW, LOG):
                refilled = ceil(0.01 * (time.monotonic() - self.began))
                used = capacity - seen.remaining
                assert noted - refilled <= used <= noted_after + under_way, NAMES[column]
        records = self.store.entries("records")
        assert all(map(is_whole, records.values())), "half a record"

    def settle(self, kills: int) -> None:
        """See that in all no more was granted than due, and nothing lost but what the killed had in hand."""
        elapsed = time.monotonic() - self.began
        paced, bursts = LIMITS[PACED], LIMITS[BURSTS]
        self.look(kills)
        assert self.book.total(PACED) <= paced["capacity"] + paced["rate"] * elapsed
        assert self.book.total(BURSTS) <= bursts["capacity"] * (1 + ceil(elapsed / bursts["window"]))


def kill_under_load(url: str, folder: Path, kills: int, seed: int = 0) -> str:
    """Kill one process after the other while two more go on; return the figures."""
    rows = SURVIVORS + kills
    path, began = folder / "book", time.monotonic()
    told: dict[str, Any] = {"url": url, "book": str(path), "rows": rows}
    with ExitStack() as ends:
        store = ends.enter_context(opened(url))
        assert isinstance(store, SharedStore)
        book = ends.enter_context(Book(path, rows, COLUMNS))
        workers = [ends.enter_context(Worker("steady", number=row, **told)) for row in range(rows)]
        survivors, victims = workers[:SURVIVORS], workers[SURVIVORS:]
        inspector = Inspector(store, book, began)
        for survivor in survivors:
            survivor.ready().go()
        _kill_all(victims, inspector, random.Random(seed))
        book.add(0, STOP)
        assert [survivor.answer() for survivor in survivors] == ["stopped"] * SURVIVORS
        inspector.settle(kills)
        counts = ", ".join(f"{NAMES[column]} {book.total(column)}" for column in NAMES)
        return f"{kills} kills in {time.monotonic() - began:.1f} s, {book.total(ROUNDS)} rounds: {counts}"


def _kill_all(victims: Sequence[Worker], inspector: Inspector, moments: random.Random) -> None:
    """Let each victim join in, kill it at some moment, and see that all is well with the others."""
    book = inspector.book
    for number, victim in enumerate(victims):
        victim.ready().go()
        _wait_for(book, [SURVIVORS + number])
        time.sleep(moments.uniform(0, 0.02))
        victim.kill()
        inspector.look(number + 1 + SURVIVORS)
        _wait_for(book, range(SURVIVORS))


def _wait_for(book: Book, rows: Sequence[int]) -> None:
    """Wait until each of some processes has done a round from now on."""
    before = {row: book.get(row, ROUNDS) for row in rows}
    deadline = time.monotonic() + GOES_ON_SECONDS
    while any(book.get(row, ROUNDS) == count for row, count in before.items()):
        assert time.monotonic() < deadline, "somebody does not go on"
        time.sleep(0.0005)
