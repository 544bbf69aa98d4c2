"""Kill processes in the middle of updates while two others continue, for the short and the long tests."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Any

from tests.processes.counter_file import CounterFile, is_intact
from tests.processes.fleet import Worker, open_state
from tests.processes.jobs import BURSTS, COLUMNS, LIMITS, LOG, NAMES, PACED, ROUNDS, SLOW, STOP, make_limiter

from comporta import BaseLimiter
from comporta.stores.shared.store import SharedStore

SURVIVORS = 2
PROGRESS_SECONDS_MAX = 60.0


class Inspector:
    """Checks all shared state from a process that is never killed."""

    def __init__(self, store: SharedStore, counters: CounterFile, began: float) -> None:
        self.store = store
        self.counters = counters
        self.began = began
        self.limiters: dict[int, BaseLimiter] = {
            column: make_limiter(store, limit, NAMES[column]) for column, limit in LIMITS.items()
        }

    def check(self, uncounted_max: int) -> None:
        """Assert that no state is torn; at most ``uncounted_max`` grants are not in the counter file."""
        for column, limiter in self.limiters.items():
            capacity = limiter.config.capacity
            counted = self.counters.total(column)
            decision, stats = limiter.sync.peek("k"), limiter.sync.stats("k")
            counted_after = self.counters.total(column)
            assert decision.limit == capacity
            assert 0 <= decision.remaining <= capacity
            assert 0 <= decision.reset_after <= (limiter.config.window or capacity / limiter.config.rate)
            granted = stats.requests_last_minute
            assert 0 <= granted <= counted_after + uncounted_max, (
                NAMES[column],
                granted,
                counted_after,
                uncounted_max,
            )
            if column in (SLOW, LOG):
                refilled = ceil(0.01 * (time.monotonic() - self.began))
                used = capacity - decision.remaining
                assert counted - refilled <= used <= counted_after + uncounted_max, NAMES[column]
        records = self.store.entries("records")
        assert all(map(is_intact, records.values())), "a record is torn"

    def settle(self, kills: int) -> None:
        """Assert that no more was granted than due, and at most one grant was lost with each kill."""
        elapsed = time.monotonic() - self.began
        paced, bursts = LIMITS[PACED], LIMITS[BURSTS]
        self.check(kills)
        assert self.counters.total(PACED) <= paced["capacity"] + paced["rate"] * elapsed
        assert self.counters.total(BURSTS) <= bursts["capacity"] * (1 + ceil(elapsed / bursts["window"]))


def kill_under_load(url: str, directory: Path, kills: int, seed: int = 0) -> str:
    """Kill one process after the other while two more continue; return a summary."""
    rows = SURVIVORS + kills
    path, began = directory / "counters", time.monotonic()
    arguments: dict[str, Any] = {"url": url, "counters": str(path), "rows": rows}
    with ExitStack() as ends:
        store = ends.enter_context(open_state(url))
        assert isinstance(store, SharedStore)
        counters = ends.enter_context(CounterFile(path, rows, COLUMNS))
        workers = [
            ends.enter_context(Worker("acquire_until_stopped", number=row, **arguments))
            for row in range(rows)
        ]
        survivors, victims = workers[:SURVIVORS], workers[SURVIVORS:]
        inspector = Inspector(store, counters, began)
        for survivor in survivors:
            survivor.wait_ready().go()
        _kill_all(victims, inspector, random.Random(seed))
        counters.add(0, STOP)
        assert [survivor.result() for survivor in survivors] == ["stopped"] * SURVIVORS
        inspector.settle(kills)
        counts = ", ".join(f"{NAMES[column]} {counters.total(column)}" for column in NAMES)
        return f"{kills} kills in {time.monotonic() - began:.1f} s, {counters.total(ROUNDS)} rounds: {counts}"


def _kill_all(victims: Sequence[Worker], inspector: Inspector, moments: random.Random) -> None:
    """Start each victim, kill it at a random moment, and check the state and the progress of the others."""
    counters = inspector.counters
    for number, victim in enumerate(victims):
        victim.wait_ready().go()
        _wait_for_round(counters, [SURVIVORS + number])
        time.sleep(moments.uniform(0, 0.02))
        victim.kill()
        inspector.check(number + 1 + SURVIVORS)
        _wait_for_round(counters, range(SURVIVORS))


def _wait_for_round(counters: CounterFile, rows: Sequence[int]) -> None:
    """Wait until each of these processes has completed another round."""
    before = {row: counters.get(row, ROUNDS) for row in rows}
    deadline = time.monotonic() + PROGRESS_SECONDS_MAX
    while any(counters.get(row, ROUNDS) == count for row, count in before.items()):
        assert time.monotonic() < deadline, "a process makes no progress"
        time.sleep(0.0005)
