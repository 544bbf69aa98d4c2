"""Invalidations: a worker drops what others changed, and everything after a gap in the log."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from tests.cache.test_local import put
from tests.support import redis_store

from comporta.cache.invalidation import (
    LOG_MAX,
    NAMESPACE,
    TTL_US,
    Invalidations,
    PublishInvalidation,
    parse_log,
)
from comporta.cache.local import LocalCache, key_digest
from comporta.errors import StateUnavailableError
from comporta.flow import run
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.records import DeleteRecord, ReadRecord, WriteRecord
from comporta.testing import ManualClock, Server


@pytest.fixture
def store(clock: ManualClock) -> Iterator[FailoverStore]:
    made = FailoverStore.wrap(MemoryStore(clock), "memory")
    made.heartbeat.start = lambda: True  # type: ignore[method-assign]  # the tests poll themselves
    yield made
    made.close()


class Peer:
    """A worker: its local cache and its invalidations."""

    def __init__(self, store: FailoverStore, clock: ManualClock) -> None:
        self.local = LocalCache(100, 1000, clock)
        self.invalidations = Invalidations("n", store, self.local)
        self._store = store
        self._clock = clock
        self.poll()

    def store(self, *keys: str) -> None:
        for key in keys:
            put(self.local, self._clock, key)

    def publish(self, key: str) -> None:
        run(self.invalidations.publish_flow(key_digest(key)))

    def poll(self) -> None:
        self.invalidations.on_heartbeat_reply(self._store.primary.apply(ReadRecord(NAMESPACE, "n")))


def params_hash(n: int) -> str:
    return f"{n:016x}".ljust(64, "0")


def test_heartbeat_reply__another_worker_changed_a_key__drops_only_that_key(
    store: FailoverStore, clock: ManualClock
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    keys = [params_hash(1), f"ana:{params_hash(1)}", params_hash(2)]
    for peer in (one, two):
        peer.store(*keys)
    one.publish(params_hash(1))
    two.poll()
    assert [two.local.peek(key) is None for key in keys] == [True, True, False]
    one.poll()
    assert len(one.local) == 3  # a worker ignores its own invalidations
    two.store(*keys)
    two.poll()
    assert len(two.local) == 3


def test_heartbeat_reply__more_changes_than_the_log_holds__drops_everything(
    store: FailoverStore, clock: ManualClock
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    one.publish(params_hash(9))
    two.poll()
    two.store(params_hash(1))
    for _ in range(LOG_MAX):
        one.publish(params_hash(9))
    two.poll()
    assert len(two.local) == 1
    for _ in range(LOG_MAX + 1):
        one.publish(params_hash(9))
    two.poll()
    assert len(two.local) == 0


@pytest.mark.parametrize("new", [False, True])
def test_heartbeat_reply__log_expired_or_restarted__drops_everything(
    store: FailoverStore, clock: ManualClock, new: bool
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    one.publish(params_hash(9))
    two.poll()
    two.store(params_hash(1))
    clock.advance(TTL_US / 1e6 + 1)
    if new:
        one.publish(params_hash(9))
    two.poll()
    assert len(two.local) == 0


def test_heartbeat_reply__no_log_yet__drops_nothing(store: FailoverStore, clock: ManualClock) -> None:
    one = Peer(store, clock)
    one.store(params_hash(1))
    one.poll()
    assert len(one.local) == 1
    clock.advance(200)
    one.poll()
    assert len(one.local) == 0  # a log may have been written and expired since


def test_heartbeat_reply__first_changes_of_a_new_log__drops_only_those_keys(
    store: FailoverStore, clock: ManualClock
) -> None:
    one, two = Peer(store, clock), Peer(store, clock)
    two.store(params_hash(1), params_hash(2))
    one.publish(params_hash(1))
    two.poll()
    assert len(two.local) == 1


def test_heartbeat_operation__all_local_entries_expired__reads_nothing(
    store: FailoverStore, clock: ManualClock
) -> None:
    one = Peer(store, clock)
    assert one.invalidations.heartbeat_operation() is None
    one.store(params_hash(1))
    assert one.invalidations.heartbeat_operation() is not None
    clock.advance(61)
    assert one.invalidations.heartbeat_operation() is None


def test_publish__store_unreachable__publishes_nothing(clock: ManualClock) -> None:
    def fails() -> MemoryStore:
        raise StateUnavailableError("gone")

    store = FailoverStore(fails, "gone", clock)
    run(Invalidations("n", store, LocalCache(1, 1, clock)).publish_flow("0" * 16))
    store.close()


def test_publish__store_of_one_process__publishes_nothing(clock: ManualClock) -> None:
    store = MemoryStore(clock)
    invalidations = Invalidations("n", store, LocalCache(1, 1, clock))
    run(invalidations.publish_flow("0" * 16))
    invalidations.ensure_listening()
    assert store.apply(ReadRecord(NAMESPACE, "n")) is None


@pytest.mark.parametrize("text", [None, b"", b"1", b"x 0123456789abcdef", b"1 0123", b"1 " + b"0" * 16 * 201])
def test_parse_log__malformed__returns_none(text: bytes | None) -> None:
    assert parse_log(text) is None


digests = st.integers(0, 3).map(lambda n: f"{n:016x}")
malformed = st.sampled_from(
    [b"x", b"12", b"12 abc", b"12 " + b"a" * 16, b"9" * 17 + b" " + b"a" * 16, b"5 " + b"A" * 16]
)


@pytest.mark.unmeasured
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.one_of(digests, malformed, st.integers(0, 400)), min_size=1, max_size=30))
def test_publish_invalidation__any_sequence__lua_and_python_agree(
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
                    remote.apply(DeleteRecord(NAMESPACE, "n"))
            elif isinstance(step, bytes):
                for store in (local, remote):
                    store.apply(WriteRecord(NAMESPACE, "n", step, TTL_US / 1e6))
                ends_ns = clock.now_ns() + TTL_US * 1000
            else:
                assert remote.apply(PublishInvalidation("n", step)) == local.apply(
                    PublishInvalidation("n", step)
                )
                ends_ns = clock.now_ns() + TTL_US * 1000
            assert remote.apply(ReadRecord(NAMESPACE, "n")) == local.apply(ReadRecord(NAMESPACE, "n"))


def test_publish_invalidation__very_many__log_stays_bounded(server: Server, clock: ManualClock) -> None:
    local = MemoryStore(clock)
    with redis_store(server, clock) as remote:
        for n in range(LOG_MAX + 5):
            operation = PublishInvalidation("n", f"{n:016x}")
            assert remote.apply(operation) == local.apply(operation)
        assert remote.apply(ReadRecord(NAMESPACE, "n")) == local.apply(ReadRecord(NAMESPACE, "n"))
        log = parse_log(local.apply(ReadRecord(NAMESPACE, "n")))
    assert log is not None
    assert len(log.digests) == LOG_MAX
    assert operation.undo(None) is None
