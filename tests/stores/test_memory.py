"""The memory engine: expiry, full stores, threads and forks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from comporta import (
    BaseLimiter,
    LimitConfig,
    LimitGroup,
    LimitStrategy,
    StateFullError,
    TokenBucketLimiter,
)
from comporta.stores import memory, memory_fast_path
from comporta.stores.base import State
from comporta.stores.memory import MemoryStore
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import ManualClock


def test_memory__idle_keys__are_freed_while_others_are_used() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    limiter = TokenBucketLimiter("10/s", store).sync
    for number in range(5_000):
        limiter.acquire(f"user:{number}")
    assert len(store) == 5_000
    for _ in range(130):
        clock.advance(1)
        limiter.acquire("busy")
    assert len(store) == 1


def test_memory__full_of_live_keys__refuses_new_ones_and_evicts_none() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, keys_max=3)
    limiter = TokenBucketLimiter("2/hour", store).sync
    for key in "abc":
        assert limiter.acquire(key) is True
    for _ in range(2):
        with pytest.raises(StateFullError, match="holds 3 live keys"):
            limiter.acquire("d")
    assert [limiter.acquire("a"), limiter.acquire("a")] == [True, False]
    clock.advance(4000)
    assert limiter.acquire("d") is True


def test_memory__full__charges_no_limit_of_a_group() -> None:
    store = MemoryStore(ManualClock(), keys_max=1)
    one, other = TokenBucketLimiter("5/hour", store, "one"), TokenBucketLimiter("5/hour", store, "other")
    one.sync.acquire("a")
    with pytest.raises(StateFullError):
        LimitGroup(one, other).sync.acquire(["a", "b"])
    assert one.sync.peek("a").remaining == 4
    assert len(store) == 1


def test_memory__closed__has_no_states() -> None:
    store = MemoryStore()
    limiter = TokenBucketLimiter("1/hour", store).sync
    store.apply(WriteRecord("s", "a", b"x", None))
    assert [limiter.acquire("a"), limiter.acquire("a")] == [True, False]
    store.close()
    assert len(store) == 0
    assert store.apply(ReadRecord("s", "a")) is None
    assert limiter.acquire("a") is True


def test_memory__keys_max_zero__is_refused() -> None:
    with pytest.raises(ValueError, match="keys_max must be at least 1, got 0"):
        MemoryStore(keys_max=0)


@pytest.mark.parametrize("has_gil", [True, False])
def test_memory__many_threads_switched_often__grant_exactly_the_capacity(
    monkeypatch: pytest.MonkeyPatch, *, has_gil: bool
) -> None:
    """Also on a Python without a global lock, where all threads use the store's lock."""
    monkeypatch.setattr(memory, "HAS_GIL", has_gil)
    limiter = TokenBucketLimiter("5000/hour", MemoryStore()).sync
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            granted = sum(threads.map(lambda _: sum(limiter.acquire("k") for _ in range(1_000)), range(8)))
            released = list(threads.map(lambda _: limiter.release("k"), range(100)))
    finally:
        sys.setswitchinterval(switch)
    assert granted == 5_000 + (limiter.stats("k").requests_last_minute - 5_000 + len(released))


def test_memory__state_removed_between_read_and_write__is_decided_again() -> None:
    """The state of the key is removed just after it was read."""

    class SweepingClock(ManualClock):
        def now_ns(self) -> int:
            if armed:
                armed.clear()
                space.table.clear()
            return super().now_ns()

    armed: list[Any] = []
    store = MemoryStore(SweepingClock())
    limiter = TokenBucketLimiter("2/hour", store, "n").sync
    limiter.acquire("k")
    space = store._spaces["rate_limiter:n"]
    armed.append(True)
    assert limiter.acquire("k") is True
    assert limiter.peek("k").remaining == 1


def test_memory__more_refusals_than_it_caches__still_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fast_path, "_REFUSALS_MAX", 2)
    limiter = TokenBucketLimiter("1/hour", MemoryStore(ManualClock())).sync
    keys = [f"k{number}" for number in range(5)]
    assert [limiter.acquire(key) for key in keys] == [True] * 5
    assert [limiter.acquire(key) for key in keys * 3] == [False] * 15


def test_memory__cached_refusal__is_dropped_when_the_key_or_the_limit_changes() -> None:
    limiter = TokenBucketLimiter("1/hour", MemoryStore(ManualClock())).sync
    assert [limiter.acquire("k") for _ in range(3)] == [True, False, False]
    limiter.release("k")
    assert [limiter.acquire("k") for _ in range(3)] == [True, False, False]
    limiter.set_limit("3600000/hour burst 1")
    assert limiter.decide("k").retry_after == 0.001


FORKING = """
import os, threading
from comporta import TokenBucketLimiter
from comporta.stores.base import State
from comporta.stores.memory import MemoryStore

limiter = TokenBucketLimiter("1000000/s", MemoryStore()).sync

def decide():
    while True:
        limiter.decide("k")

threading.Thread(target=decide, daemon=True).start()
for _ in range(20):
    child = os.fork()
    if child == 0:
        os._exit(0 if limiter.decide("k").limit == 1_000_000 else 1)
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def test_memory__forked_while_another_thread_decides__child_can_decide() -> None:
    """In a separate process without coverage, whose locks the fork could meet too."""
    subprocess.run([sys.executable, "-c", FORKING], check=True, timeout=60)


def test_memory__after_a_fork__has_a_free_lock() -> None:
    store = MemoryStore()
    store._lock.acquire()
    store.after_fork()
    assert TokenBucketLimiter("1/s", store).sync.acquire() is True


def test_memory__entries_async__are_the_same() -> None:
    store = MemoryStore()
    store.apply(WriteRecord("s", "a", b"x", None))
    assert asyncio.run(store.entries_async("s")) == {"a": b"x"}


def test_memory__full_of_expired_keys__makes_room_at_once() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, keys_max=600)
    limiter = TokenBucketLimiter("9/s", store).sync
    for number in range(600):
        limiter.acquire(f"old{number}")
    clock.advance(61)
    for number in range(300):
        assert limiter.acquire(f"new{number}") is True
    assert len(store) == 300


def test_memory__room_for_one_of_two_new_keys__takes_neither() -> None:
    store = MemoryStore(ManualClock(), keys_max=2)
    one, other = TokenBucketLimiter("9/s", store, "one"), TokenBucketLimiter("9/s", store, "other")
    one.sync.acquire("old")
    with pytest.raises(StateFullError):
        LimitGroup(one, other).sync.acquire(["new", "newer"])
    assert len(store) == 1
    assert one.sync.acquire("new") is True


# many keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy", [each for each in LimitStrategy if each is not LimitStrategy.LEAKY_BUCKET]
)
def test_memory__more_keys_than_are_recent__keeps_each_state(strategy: LimitStrategy) -> None:
    store = MemoryStore()
    limiter = BaseLimiter(LimitConfig(0.001, 3, 3600, strategy), store, "n").sync
    keys = [f"k{number}" for number in range(6000)]
    for _ in range(2):
        assert all(limiter.acquire(key) for key in keys)
    assert {limiter.peek(key).remaining for key in keys} == {1}
    limiter.reset("k0")
    limiter.reset("k5999")
    assert len(store) == 5998
    assert limiter.peek("k0").remaining == 3
    assert max(map(len, store._spaces["rate_limiter:n"].parts())) <= 2048
    store.close()
    assert len(store) == 0


def test_memory__many_expired_keys__are_removed_within_about_a_minute() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    limiter = TokenBucketLimiter("10/s", store, "n").sync
    for number in range(20_000):
        limiter.acquire(f"k{number}")
    clock.advance(61)
    for _ in range(90):
        limiter.acquire("in use")
        clock.advance(1)
    assert len(store) == 1


def test_memory__full_of_expired_keys__finds_room_step_by_step() -> None:
    clock = ManualClock()
    store = MemoryStore(clock, keys_max=5000)
    limiter = TokenBucketLimiter("10/s", store, "n").sync
    for number in range(5000):
        limiter.acquire(f"k{number}")
    clock.advance(61)
    assert limiter.acquire("new") is True
    assert len(store) < 5000


def test_memory__number_too_large_for_the_layout__is_kept_as_it_is() -> None:
    clock = ManualClock()
    limiter = TokenBucketLimiter(LimitConfig(1e9, 10**9), MemoryStore(clock), "n").sync
    for _ in range(5):
        clock.advance(1)
        assert limiter.acquire("large", 10**9)
    for number in range(5000):
        limiter.acquire(f"k{number}")
    assert limiter.stats("large").requests_last_minute == 5 * 10**9


def test_update_states__many_keys__updates_those_not_used_lately_too() -> None:
    store = MemoryStore()
    limiter = TokenBucketLimiter("3/hour", store, "n").sync
    for number in range(5000):
        limiter.acquire(f"k{number}")
    seen = set()

    def visit(space: str, key: str, state_type: object, state: State, now_us: int) -> State | None:
        seen.add(key)
        return (0, *state[1:]) if key == "k0" else None

    store.update_states(visit)
    assert len(seen) == 5000
    assert limiter.peek("k0").remaining == 0
