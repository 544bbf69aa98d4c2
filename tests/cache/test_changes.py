"""The log of changes: what others did is dropped here, and a gap drops everything."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.cache.test_level import put
from tests.support import redis_store

from comporta.cache.changes import LOG_MAX, SPACE, TTL_US, Announce, Changes, read_log
from comporta.cache.level import Level, digest_of
from comporta.errors import StateUnavailableError
from comporta.flow import run
from comporta.stores.failover import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.records import Delete, Read, Write
from comporta.testing import ManualClock, Server


@pytest.fixture
def store(clock: ManualClock) -> Iterator[FailoverStore]:
    made = FailoverStore.of(MemoryStore(clock), "memory")
    made.keeper.start = lambda: True  # type: ignore[method-assign]  # looks are taken by hand here
    yield made
    made.close()


class Peer:
    """A worker's level, and its ear."""

    def __init__(self, store: FailoverStore, clock: ManualClock) -> None:
        self.level = Level(100, 1000, clock)
        self.changes = Changes("n", store, self.level)
        self._store = store
        self._clock = clock
        self.look()

    def keep(self, *keys: str) -> None:
        for key in keys:
            put(self.level, self._clock, key)

    def tell(self, key: str) -> None:
        run(self.changes.telling(digest_of(key)))

    def look(self) -> None:
        self.changes.told(self._store.primary.apply(Read(SPACE, "n")))


def named(n: int) -> str:
    return f"{n:016x}".ljust(64, "0")


def test_told__others_changed_a_key__only_that_is_dropped(store: FailoverStore, clock: ManualClock) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    keys = [named(1), f"ana:{named(1)}", named(2)]
    for peer in (one, two):
        peer.keep(*keys)
    one.tell(named(1))
    two.look()
    assert [two.level.leftover(key) is None for key in keys] == [True, True, False]
    one.look()
    assert len(one.level) == 3  # whoever changed it knows it
    two.keep(*keys)
    two.look()
    assert len(two.level) == 3


def test_told__more_than_the_log_holds__everything_is_dropped(
    store: FailoverStore, clock: ManualClock
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    one.tell(named(9))
    two.look()
    two.keep(named(1))
    for _ in range(LOG_MAX):
        one.tell(named(9))
    two.look()
    assert len(two.level) == 1
    for _ in range(LOG_MAX + 1):
        one.tell(named(9))
    two.look()
    assert len(two.level) == 0


@pytest.mark.parametrize("new", [False, True])
def test_told__log_has_ended_or_begun_anew__everything_is_dropped(
    store: FailoverStore, clock: ManualClock, new: bool
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    one.tell(named(9))
    two.look()
    two.keep(named(1))
    clock.advance(TTL_US / 1e6 + 1)
    if new:
        one.tell(named(9))
    two.look()
    assert len(two.level) == 0


def test_told__there_was_never_a_log__nothing_is_dropped(store: FailoverStore, clock: ManualClock) -> None:
    one = Peer(store, clock)
    one.keep(named(1))
    one.look()
    assert len(one.level) == 1
    clock.advance(200)
    one.look()
    assert len(one.level) == 0  # it may have come and gone since


def test_told__first_changes_after_none__are_dropped_one_by_one(
    store: FailoverStore, clock: ManualClock
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    two.keep(named(1), named(2))
    one.tell(named(1))
    two.look()
    assert len(two.level) == 1


def test_due__nothing_may_be_given_from_memory_any_more__nobody_looks(
    store: FailoverStore, clock: ManualClock
) -> None:
    one = Peer(store, clock)
    assert one.changes.due() is None
    one.keep(named(1))
    assert one.changes.due() is not None
    clock.advance(61)
    assert one.changes.due() is None


def test_telling__state_is_out_of_reach__is_left_unsaid(clock: ManualClock) -> None:
    def fails() -> MemoryStore:
        raise StateUnavailableError("gone")

    store = FailoverStore(fails, "gone", clock)
    level = Level(1, 1, clock)
    run(Changes("n", store, level).telling("0" * 16))
    store.close()


def test_telling__state_of_one_process__nobody_is_told(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    changes = Changes("n", store, Level(1, 1, clock))
    run(changes.telling("0" * 16))
    changes.listen()
    assert store.apply(Read(SPACE, "n")) is None


@pytest.mark.parametrize("text", [None, b"", b"1", b"x 0123456789abcdef", b"1 0123", b"1 " + b"0" * 16 * 201])
def test_read_log__something_else__is_none(text: bytes | None) -> None:
    assert read_log(text) is None


digests = st.integers(0, 3).map(lambda n: f"{n:016x}")
odd = st.sampled_from(
    [b"x", b"12", b"12 abc", b"12 " + b"a" * 16, b"9" * 17 + b" " + b"a" * 16, b"5 " + b"A" * 16]
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.one_of(digests, odd, st.integers(0, 400)), min_size=1, max_size=30))
def test_announce__any_changes_any_time__the_server_answers_as_python_does(
    server: Server, steps: list[str | bytes | int]
) -> None:
    clock = ManualClock(1_800_000_000)
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        ends_ns = 0
        for step in steps:
            if isinstance(step, int):
                clock.advance(step)
                if clock.now_ns() >= ends_ns:
                    remote.apply(Delete(SPACE, "n"))
            elif isinstance(step, bytes):
                for store in (local, remote):
                    store.apply(Write(SPACE, "n", step, TTL_US / 1e6))
                ends_ns = clock.now_ns() + TTL_US * 1000
            else:
                assert remote.apply(Announce("n", step)) == local.apply(Announce("n", step))
                ends_ns = clock.now_ns() + TTL_US * 1000
            assert remote.apply(Read(SPACE, "n")) == local.apply(Read(SPACE, "n"))


def test_announce__very_many__the_log_stays_short(server: Server, clock: ManualClock) -> None:
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for n in range(LOG_MAX + 5):
            announce = Announce("n", f"{n:016x}")
            assert remote.apply(announce) == local.apply(announce)
        assert remote.apply(Read(SPACE, "n")) == local.apply(Read(SPACE, "n"))
        log = read_log(local.apply(Read(SPACE, "n")))
    assert log is not None
    assert len(log.digests) == LOG_MAX
    assert announce.undo(None) is None
