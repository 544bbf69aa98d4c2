"""The level in memory: bounded, quick, and never holding what was said to have changed."""

from __future__ import annotations

import threading

import pytest

from comporta.cache.cached import Cached
from comporta.cache.level import Level, digest_of
from comporta.cache.rows import Entry
from comporta.testing import ManualClock

KEYS = [f"{n:016x}{n:048x}" for n in range(100)]


def answer(value: object, clock: ManualClock, user: str = "u", name: str = KEYS[0]) -> Cached:
    row = Entry(user, name, 0, 0, None, None, 0, None, None, None, (), True, b"", b"", None, 0, 0, None, 0)
    return Cached(value, "fresh", None, "database", row, clock, clock.now_ns())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def level(clock: ManualClock) -> Level:
    return Level(3, 100, clock)


def put(level: Level, clock: ManualClock, key: str, size: int = 1, stamp: int | None = None) -> None:
    until_ns = clock.now_ns() + 10**9
    level.put(key, answer(key, clock), until_ns, size, level.stamp if stamp is None else stamp)


def held(level: Level) -> list[str]:
    return [key for key in KEYS if level.leftover(key) is not None]


def test_hit__until_its_time__and_then_only_a_leftover(level: Level, clock: ManualClock) -> None:
    put(level, clock, KEYS[0])
    found = level.hit(KEYS[0])
    assert found is not None
    assert (found.value, found.source) == (KEYS[0], "memory")
    assert level.hit(KEYS[1]) is None
    clock.advance(1)
    assert level.hit(KEYS[0]) is None
    assert level.leftover(KEYS[0]) is found
    assert found.age == 1


def test_put__no_room__what_was_not_used_goes_first(level: Level, clock: ManualClock) -> None:
    for key in KEYS[:3]:
        put(level, clock, key)
    assert level.hit(KEYS[0])
    put(level, clock, KEYS[3])
    assert held(level) == [KEYS[0], KEYS[2], KEYS[3]]
    put(level, clock, KEYS[4])
    assert held(level) == [KEYS[0], KEYS[3], KEYS[4]]
    assert len(level) == 3


def test_put__too_many_bytes__makes_room_and_what_never_fits_stays_out(
    level: Level, clock: ManualClock
) -> None:
    put(level, clock, KEYS[0], size=60)
    put(level, clock, KEYS[1], size=60)
    assert held(level) == [KEYS[1]]
    put(level, clock, KEYS[2], size=101)
    assert held(level) == [KEYS[1]]
    put(level, clock, KEYS[1], size=10)
    put(level, clock, KEYS[2], size=90)
    assert held(level) == [KEYS[1], KEYS[2]]


def test_put__dropped_since_it_was_read__is_not_kept(level: Level, clock: ManualClock) -> None:
    stamp = level.stamp
    level.drop_digest(digest_of(KEYS[0]))
    put(level, clock, KEYS[0], stamp=stamp)
    put(level, clock, KEYS[1], stamp=stamp)
    assert held(level) == [KEYS[1]]
    put(level, clock, KEYS[0])
    assert held(level) == KEYS[:2]
    stamp = level.stamp
    level.clear()
    put(level, clock, KEYS[2], stamp=stamp)
    assert held(level) == []


def test_put__very_many_dropped_since__is_not_kept_either(level: Level, clock: ManualClock) -> None:
    stamp = level.stamp
    for n in range(1001):
        level.drop_digest(f"{n + 1000:016x}")
    put(level, clock, KEYS[0], stamp=stamp)
    assert held(level) == []


def test_drop_digest__all_keys_of_the_same_parameters__are_gone(level: Level, clock: ManualClock) -> None:
    for key in (f"ana:{KEYS[1]}", f"bob:{KEYS[1]}", f"eva:{KEYS[1]}"):
        put(level, clock, key)
    level.drop_digest("f" * 16)
    assert len(level) == 3
    level.drop_digest(KEYS[1][:16])
    assert len(level) == 0


def test_drop_digest__of_what_is_half_gone__harms_nothing(level: Level, clock: ManualClock) -> None:
    put(level, clock, KEYS[0])
    del level._slots[KEYS[0]]  # as a signal may leave it
    level.drop_digest(digest_of(KEYS[0]))
    put(level, clock, KEYS[1])
    assert held(level) == [KEYS[1]]


def test_touches__hits__are_counted_once(level: Level, clock: ManualClock) -> None:
    put(level, clock, KEYS[0])
    for _ in range(3):
        level.hit(KEYS[0])
    assert level.touches() == {("u", KEYS[0]): 3}
    assert level.touches() == {}
    level.hit(KEYS[0])
    level.after_fork()
    assert level.touches() == {}


def test_touches__served_as_they_are_put__are_counted_by_row_up_to_the_bound(
    level: Level, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comporta.cache.level.TOUCHED_MAX", 1)
    for name in (KEYS[0], KEYS[1], KEYS[0]):
        level.put(name, answer(name, clock, name=name), clock.now_ns() + 10**9, 1, level.stamp, served=True)
    level.hit(KEYS[0])
    assert level.touches() == {("u", KEYS[0]): 3}
    assert level.touches() == {}


def test_level__many_threads__stays_whole(clock: ManualClock) -> None:
    level = Level(10, 10_000, clock)

    def work(seed: int) -> None:
        for n in range(2000):
            key = f"{'ab'[n % 2]}:{KEYS[(n * seed) % 15]}"
            if level.hit(key) is None:
                put(level, clock, key)
            if n % 97 == 0:
                level.drop_digest(digest_of(key))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(level) <= 10
    known = [1 if isinstance(keys, str) else len(keys) for keys in level._by_digest.values()]
    assert level._bytes == len(level) == sum(known)
