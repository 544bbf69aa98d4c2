"""Failover: a worker decides from its local share while the shared store is down (A8, A12)."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import Any

import pytest
from tests.stores.manual_heartbeat import (
    STORE_DOWN,
    TEN_PER_SECOND,
    FailingStore,
    ManualHeartbeat,
    kinds_since,
    manual_failover,
    run_heartbeat,
)
from tests.support import fallback_of, memory_store, shared_store

from comporta import BaseLimiter, events
from comporta.errors import (
    StateAuthError,
    StateError,
    StateFullError,
    StateMovingError,
    StatePermissionError,
    StateTypeError,
    StateUnavailableError,
)
from comporta.flow import Flow, run, run_async
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.config import LimitConfig
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.base import Operation
from comporta.stores.effects import ApplyMany
from comporta.stores.failover import local_share
from comporta.stores.failover import store as failover_store
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.stores.records import WriteRecord
from comporta.testing import ManualClock, StoreConformance


class TestFailoverStore(StoreConformance):
    """While the engine is reachable, a failover store is a store like any other."""

    @contextmanager
    def store(self, clock: ManualClock) -> Any:
        with memory_store(clock) as store:
            failover = FailoverStore.wrap(store, "memory://test")
            try:
                yield failover
            finally:
                failover.close()


@pytest.mark.parametrize("awaiting", [False, True])
def test_apply__store_fails__is_answered_from_the_local_share(awaiting: bool) -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)

    def apply() -> int:
        acquire = AcquireOperation(TEN_PER_SECOND, "k", 1)
        return asyncio.run(store.apply_async(acquire)) if awaiting else store.apply(acquire)

    assert apply() == 0
    assert fallback_of(store) is None
    assert primary.fallback is None
    primary.error = STORE_DOWN
    assert apply() == 100_000  # empty at first: other workers may have spent what the bucket held
    clock.advance(0.1)
    assert apply() == 0
    assert apply() == 100_000
    calls = primary.calls
    assert apply() == 100_000
    assert primary.calls == calls, "only the first caller waits for the store"
    fallback = fallback_of(store)
    assert fallback is not None
    assert fallback.reason == "the server is gone"
    assert abs(fallback.since - time.time()) < 60


def test_fast_path__engine_fails__is_answered_from_the_local_share(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise STORE_DOWN

    with shared_store() as engine:
        store = FailoverStore.wrap(engine, engine.address)
        store.heartbeat = ManualHeartbeat(store)  # it does not end the outage
        assert store.primary is engine
        bound = BaseLimiter("1/day", store, "n")._flows.bound
        assert bound.acquire("k", 1) == 0
        monkeypatch.setattr(bound._primary_bound(), "try_acquire", fail)  # type: ignore[attr-defined]
        assert bound.try_acquire("k", 1) > 0, "a share starts empty"
        assert fallback_of(store) is not None
        store.close()


def test_fail_over__several_callers_at_once__is_one_event_one_log_line_one_metric(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    try:
        store, _ = manual_failover()
        count = len(events.latest_events())
        first = store.fail_over(STORE_DOWN)
        assert store.fail_over(STORE_DOWN) is first
        assert kinds_since(count) == ["state_fallback"]
        [record] = caplog.records
        assert "1/1 of each limit" in record.getMessage()
        assert metrics.value("state_switches", to="fallback") == 1
        store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
        assert metrics.value("state_fallback_decisions") == 1
        store.recover()
        store.recover()
        assert kinds_since(count) == ["state_fallback", "state_recovered"]
        assert metrics.value("state_switches", to="shared") == 1
    finally:
        use_metrics(before)


def test_outage__operation_without_fallback__raises_with_the_reason() -> None:
    store, primary = manual_failover()
    primary.error = STORE_DOWN
    with pytest.raises(StateUnavailableError, match=r"not possible without .*: the server is gone"):
        store.apply(WriteRecord("s", "k", b"x", None))
    with pytest.raises(StateUnavailableError, match="not possible"):
        store.entries("s")
    with pytest.raises(StateUnavailableError, match="not possible"):
        asyncio.run(store.entries_async("s"))
    primary.error = None
    run_heartbeat(store)
    assert store.apply(WriteRecord("s", "k", b"x", None))
    assert store.entries("s") == {"k": b"x"}


def test_denial__before_the_first_reply__is_raised_every_time() -> None:
    store, primary = manual_failover()
    primary.error = StateAuthError("wrong password")
    for _ in range(2):
        with pytest.raises(StateAuthError):
            store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    run_heartbeat(store)  # the heartbeat is denied too, without an event
    assert fallback_of(store) is None


def test_denial__after_the_first_reply__is_an_outage_without_open_fallbacks() -> None:
    store, primary = manual_failover()
    open_limit = LimitDefinition(LimitConfig.parse("10/s").build_strategy(), "open", "open")
    assert store.apply(AcquireOperation(open_limit, "k", 1)) == 0
    primary.error = StateAuthError("the password was changed")
    count = len(events.latest_events())
    assert store.apply(AcquireOperation(open_limit, "k", 1)) > 0
    run_heartbeat(store)
    run_heartbeat(store)  # the event is not repeated within a minute
    assert kinds_since(count) == ["state_fallback", "state_denied"]


def test_denial__found_by_the_first_probe__is_raised_until_access_is_granted() -> None:
    store, primary = manual_failover()
    primary.error = StateUnavailableError("still connecting; nothing was sent")
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) > 0
    primary.error = StateAuthError("wrong password")
    for _ in range(2):
        run_heartbeat(store)
        with pytest.raises(StateAuthError, match="wrong password"):
            store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    primary.error = None
    run_heartbeat(store)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0


def test_denial__found_by_a_probe_during_an_outage__ends_open_fallbacks() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    open_limit = LimitDefinition(LimitConfig.parse("10/s").build_strategy(), "open", "open")
    assert store.apply(AcquireOperation(open_limit, "k", 1)) == 0
    primary.error = STORE_DOWN
    assert [store.apply(AcquireOperation(open_limit, "k", 1)) for _ in range(20)] == [0] * 20
    clock.advance(60)
    primary.error = StateAuthError("the password was changed")
    run_heartbeat(store)
    assert store.apply(AcquireOperation(open_limit, "k", 1)) == 100_000, "the share starts empty"
    fallback = fallback_of(store)
    assert fallback is not None
    assert fallback.reason == "the password was changed"
    run_heartbeat(store)
    later = fallback_of(store)
    assert later is not None
    assert later.since == fallback.since
    primary.error = None
    run_heartbeat(store)
    store.record_denial(StateAuthError("after the recovery"))
    assert fallback_of(store) is None


@pytest.mark.parametrize(
    "error",
    [StateTypeError("'a' is of another type"), StateFullError("no room"), StateMovingError("'a' is moving")],
)
def test_unusable_key__single__uses_the_local_share_while_others_do_not(error: StateError) -> None:
    store, primary = manual_failover()
    count = len(events.latest_events())
    primary.error = error
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "a", 1)) > 0
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "a", 1)) > 0
    assert fallback_of(store) is None
    primary.error = None
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "b", 1)) == 0
    assert kinds_since(count) == ["state_key_unusable"], "named once"
    assert str(error) in events.latest_events()[-1].text


def test_unusable_keys__more_than_the_maximum__are_not_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failover_store, "REPORTED_KEYS_MAX", 2)
    store, primary = manual_failover()
    count = len(events.latest_events())
    for number in range(4):
        primary.error = StateTypeError(f"key {number}")
        store.apply(AcquireOperation(TEN_PER_SECOND, str(number), 1))
    assert len(kinds_since(count)) == 2


def test_local_share__more_keys_than_it_may_hold__refuses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_share, "FALLBACK_KEYS_MAX", 2)
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "a", 1))
    clock.advance(1)
    assert [store.apply(AcquireOperation(TEN_PER_SECOND, key, 1)) for key in "abc"] == [0, 0, 1_000_000]
    demand = LimitDemand(TEN_PER_SECOND.strategy, "ten", "d", 1)
    [reply] = store.apply(LimitOperation([demand]))
    assert reply.remaining == 0


def test_primary__cannot_be_opened_yet__is_used_once_it_can() -> None:
    clock = ManualClock()
    tries = 0

    def open_primary() -> FailingStore:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise StateUnavailableError("read-only file system")
        return FailingStore(clock)

    store = FailoverStore(open_primary, "test://late", clock)
    store.heartbeat = ManualHeartbeat(store)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) > 0
    assert store.local_share is not None
    run_heartbeat(store)
    assert store.local_share is not None
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0


def test_fork__during_an_outage__gives_the_child_its_own_share() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(1)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0
    store.after_fork()
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) > 0
    whole, _ = manual_failover(clock)
    whole.after_fork()
    assert whole.local_share is None


def test_entries__first_use__are_read_from_the_store() -> None:
    store, primary = manual_failover()
    primary.apply(WriteRecord("s", "k", b"x", None))
    assert store.entries("s") == {"k": b"x"}
    assert asyncio.run(store.entries_async("s")) == {"k": b"x"}


def test_close__store_never_opened__does_nothing() -> None:
    store = FailoverStore(lambda: FailingStore(ManualClock()), "test://unopened", ManualClock())
    asyncio.run(store.aclose())
    store.close()


def test_denial__during_an_outage__open_limit_starts_empty_within_its_share() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    open_limit = LimitDefinition(LimitConfig.parse("10/s").build_strategy(), "open", "open")
    store.apply(AcquireOperation(open_limit, "k", 1))
    primary.error = STORE_DOWN
    assert all(store.apply(AcquireOperation(open_limit, "k", 1)) == 0 for _ in range(50))
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    primary.error = StateAuthError("the password was changed")
    run_heartbeat(store)
    granted = 0
    for _ in range(600):
        clock.advance(0.01)
        granted += store.apply(AcquireOperation(open_limit, "k", 1)) == 0
    assert granted <= 61
    run_heartbeat(store)
    assert store.local_share is not None
    assert store.local_share.outage.denied
    store.recover()
    store.record_denial(StateAuthError("after the recovery"))
    assert fallback_of(store) is None


def test_unusable_key__more_workers_by_now__divides_by_their_number() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = StateTypeError("'a' is of another type")
    store.apply(AcquireOperation(TEN_PER_SECOND, "a", 1))
    store.heartbeat.worker_count.record(5)
    store.apply(AcquireOperation(TEN_PER_SECOND, "a", 1))
    clock.advance(10)
    assert [store.apply(AcquireOperation(TEN_PER_SECOND, "a", 1)) for _ in range(3)] == [0, 0, 500_000]


def test_permission_error__one_key_or_store_wide__uses_the_share_or_is_an_outage() -> None:
    store, primary = manual_failover()
    forbidden = StatePermissionError("NOPERM this key")
    primary.error = forbidden
    with pytest.raises(StatePermissionError):
        store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    primary.error = None
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    primary.error = forbidden
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) > 0
    assert fallback_of(store) is None
    run_heartbeat(store)
    assert fallback_of(store) is not None


def test_apply_many__store_reachable_then_not__answers_then_begins_an_outage() -> None:
    store, primary = manual_failover(ManualClock())
    assert store.apply_many(
        [AcquireOperation(TEN_PER_SECOND, "k", 1), AcquireOperation(TEN_PER_SECOND, "k", 11)]
    ) == [0, 100_000]
    primary.error = StateTypeError("a key of another type")
    assert [type(reply) for reply in store.apply_many([AcquireOperation(TEN_PER_SECOND, "k", 1)])] == [
        StateTypeError
    ]
    primary.error = STORE_DOWN
    with pytest.raises(StateUnavailableError):
        store.apply_many([AcquireOperation(TEN_PER_SECOND, "k", 1)])
    primary.error = None
    with pytest.raises(StateUnavailableError, match="not possible without the shared state"):
        store.apply_many([AcquireOperation(TEN_PER_SECOND, "k", 1)])


def test_apply_many_effect__errors__are_among_the_results() -> None:
    class BrokenStore(FailingStore):
        def apply(self, operation: Operation[Any]) -> Any:
            raise ZeroDivisionError

    def apply_flow(store: FailingStore) -> Flow[Any]:
        return (
            yield ApplyMany(
                store, [AcquireOperation(TEN_PER_SECOND, "k", 1), AcquireOperation(TEN_PER_SECOND, "k", 1)]
            )
        )

    store = FailingStore(ManualClock())
    assert run(apply_flow(store)) == asyncio.run(run_async(apply_flow(store))) == [0, 0]
    store.error = STORE_DOWN
    assert run(apply_flow(store)) == asyncio.run(run_async(apply_flow(store))) == [STORE_DOWN, STORE_DOWN]
    with pytest.raises(ZeroDivisionError):
        asyncio.run(run_async(apply_flow(BrokenStore(ManualClock()))))


class UnpluggedStore(MemoryStore):
    """State that cannot be reached, of an engine that leaves the errors of its sockets as they are."""

    def apply(self, operation: Operation[Any]) -> Any:
        raise ConnectionResetError("connection reset by peer")

    async def entries_async(self, space: str) -> dict[str, bytes]:
        raise ConnectionResetError("connection reset by peer")


def test_engine__raises_the_error_of_a_socket__is_an_error_of_the_state() -> None:
    primary = UnpluggedStore(ManualClock())
    store = FailoverStore(lambda: primary, "test://unplugged", primary.clock)
    with pytest.raises(StateUnavailableError, match="connection reset by peer"):
        asyncio.run(store.entries_async("s"))
    with pytest.raises(StateUnavailableError, match="connection reset by peer"):
        store.apply_many([AcquireOperation(TEN_PER_SECOND, "k", 1)])
    store.close()
