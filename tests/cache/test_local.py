"""The local cache: bounded, and never with an entry that was invalidated since it was read."""

from __future__ import annotations

import threading

import pytest

from comporta.cache.entry import Cached
from comporta.cache.local import LocalCache, key_digest
from comporta.cache.rows import ResultRow
from comporta.testing import ManualClock

KEYS = [f"{n:016x}{n:048x}" for n in range(100)]


def result(value: object, clock: ManualClock, user: str = "u", name: str = KEYS[0]) -> Cached:
    row = ResultRow(user, name, 0, 0, None, None, 0, None, None, None, None, b"", None, True, 0)
    return Cached(value, "fresh", None, "database", row, (), clock, clock.now_ns())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def local(clock: ManualClock) -> LocalCache:
    return LocalCache(3, 100, clock)


def put(local: LocalCache, clock: ManualClock, key: str, size: int = 1, version: int | None = None) -> None:
    expires_ns = clock.now_ns() + 10**9
    local.put(key, result(key, clock), expires_ns, size, local.version if version is None else version)


def stored_keys(local: LocalCache) -> list[str]:
    return [key for key in KEYS if local.peek(key) is not None]


def test_get__entry_expires__is_available_only_through_peek(local: LocalCache, clock: ManualClock) -> None:
    put(local, clock, KEYS[0])
    cached = local.get(KEYS[0])
    assert cached is not None
    assert (cached.value, cached.source) == (KEYS[0], "memory")
    assert local.get(KEYS[1]) is None
    clock.advance(1)
    assert local.get(KEYS[0]) is None
    assert local.peek(KEYS[0]) == (cached, 1)
    assert cached.age == 1


def test_put__full__evicts_unused_entries_first(local: LocalCache, clock: ManualClock) -> None:
    for key in KEYS[:3]:
        put(local, clock, key)
    assert local.get(KEYS[0])
    put(local, clock, KEYS[3])
    assert stored_keys(local) == [KEYS[0], KEYS[2], KEYS[3]]
    put(local, clock, KEYS[4])
    assert stored_keys(local) == [KEYS[0], KEYS[3], KEYS[4]]
    assert len(local) == 3


def test_put__too_many_bytes__evicts_and_rejects_what_never_fits(
    local: LocalCache, clock: ManualClock
) -> None:
    put(local, clock, KEYS[0], size=60)
    put(local, clock, KEYS[1], size=60)
    assert stored_keys(local) == [KEYS[1]]
    put(local, clock, KEYS[2], size=101)
    assert stored_keys(local) == [KEYS[1]]
    put(local, clock, KEYS[1], size=10)
    put(local, clock, KEYS[2], size=90)
    assert stored_keys(local) == [KEYS[1], KEYS[2]]


def test_put__invalidated_since_it_was_read__is_not_stored(local: LocalCache, clock: ManualClock) -> None:
    version = local.version
    local.invalidate(key_digest(KEYS[0]))
    put(local, clock, KEYS[0], version=version)
    put(local, clock, KEYS[1], version=version)
    assert stored_keys(local) == [KEYS[1]]
    put(local, clock, KEYS[0])
    assert stored_keys(local) == KEYS[:2]
    version = local.version
    local.clear()
    put(local, clock, KEYS[2], version=version)
    assert stored_keys(local) == []


def test_put__very_many_invalidated_since__is_not_stored(local: LocalCache, clock: ManualClock) -> None:
    version = local.version
    for n in range(1001):
        local.invalidate(f"{n + 1000:016x}")
    put(local, clock, KEYS[0], version=version)
    assert stored_keys(local) == []


def test_invalidate__all_keys_of_the_same_parameters__are_removed(
    local: LocalCache, clock: ManualClock
) -> None:
    for key in (f"ana:{KEYS[1]}", f"bob:{KEYS[1]}", f"eva:{KEYS[1]}"):
        put(local, clock, key)
    local.invalidate("f" * 16)
    assert len(local) == 3
    local.invalidate(KEYS[1][:16])
    assert len(local) == 0


def test_invalidate__half_removed_entry__does_nothing(local: LocalCache, clock: ManualClock) -> None:
    put(local, clock, KEYS[0])
    del local._entries[KEYS[0]]  # as an interrupting signal handler may leave it
    local.invalidate(key_digest(KEYS[0]))
    put(local, clock, KEYS[1])
    assert stored_keys(local) == [KEYS[1]]


def test_drain_accesses__hits__are_returned_once(local: LocalCache, clock: ManualClock) -> None:
    put(local, clock, KEYS[0])
    for _ in range(3):
        local.get(KEYS[0])
    assert local.drain_accesses() == {("u", KEYS[0]): 3}
    assert local.drain_accesses() == {}
    local.get(KEYS[0])
    local.after_fork()
    assert local.drain_accesses() == {}


def test_drain_accesses__served_on_put__are_counted_per_row_up_to_the_bound(
    local: LocalCache, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.cache.local.ACCESSED_MAX", 1)
    for name in (KEYS[0], KEYS[1], KEYS[0]):
        local.put(name, result(name, clock, name=name), clock.now_ns() + 10**9, 1, local.version, served=True)
    local.get(KEYS[0])
    assert local.drain_accesses() == {("u", KEYS[0]): 3}
    assert local.drain_accesses() == {}


def test_local_cache__many_threads__stays_consistent(clock: ManualClock) -> None:
    local = LocalCache(10, 10_000, clock)

    def work(seed: int) -> None:
        for n in range(2000):
            key = f"{'ab'[n % 2]}:{KEYS[(n * seed) % 15]}"
            if local.get(key) is None:
                put(local, clock, key)
            if n % 97 == 0:
                local.invalidate(key_digest(key))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(local) <= 10
    counts = [1 if isinstance(keys, str) else len(keys) for keys in local._by_digest.values()]
    assert local._bytes == len(local) == sum(counts)
