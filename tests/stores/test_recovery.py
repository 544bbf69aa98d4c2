"""Recovery after an outage: probes, reports of what was granted, and the rejoin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.stores.manual_heartbeat import (
    STORE_DOWN,
    TEN_PER_SECOND,
    FailingStore,
    manual_failover,
    run_heartbeat,
)
from tests.support import fallback_of

from comporta.errors import (
    StateError,
    StateFullError,
    StateTypeError,
)
from comporta.limits.acquire import AcquireOperation
from comporta.limits.charge import ChargeOperation
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.base import Operation
from comporta.stores.failover.heartbeat import PROBE_SECONDS_MAX
from comporta.stores.failover.worker_registry import (
    HEARTBEAT_SECONDS,
    REJOIN_KEY,
    RecordHeartbeat,
    ScheduleRejoin,
)
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import ManualClock


def test_recovery__after_an_outage__charges_what_the_share_granted() -> None:
    """The server came back empty, that is with a full bucket; the fleet must not get a second burst."""
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    granted = 0
    for _ in range(40):
        clock.advance(0.05)
        granted += store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0
    store.apply(AcquireOperation(TEN_PER_SECOND, "idle", 1))
    assert granted == 20
    primary.error = None
    assert run_heartbeat(store) == HEARTBEAT_SECONDS
    assert fallback_of(store) is None
    [reply] = store.apply(LimitOperation([LimitDemand(TEN_PER_SECOND.strategy, "ten", "k", 0)]))
    assert reply.remaining == 0
    [reply] = store.apply(LimitOperation([LimitDemand(TEN_PER_SECOND.strategy, "ten", "idle", 0)]))
    assert reply.remaining == 9


def test_recovery__probe_fails_at_the_report__stays_in_fallback() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(0.1)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0
    pauses = [run_heartbeat(store) for _ in range(20)]
    assert all(pause is not None and 0 < pause <= 1.5 * PROBE_SECONDS_MAX for pause in pauses)
    assert store.local_share is not None
    primary.error = None
    apply = primary.apply

    def fail_at_the_report(operation: Operation[Any]) -> Any:
        if isinstance(operation, ChargeOperation):
            raise STORE_DOWN
        return apply(operation)

    primary.apply = fail_at_the_report  # type: ignore[method-assign]
    run_heartbeat(store)
    assert store.local_share is not None
    primary.apply = apply  # type: ignore[method-assign]
    run_heartbeat(store)
    assert fallback_of(store) is None


def test_recovery__fault_of_this_worker_alone__does_not_wait_to_rejoin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other workers use the whole limit in the meantime, and a share on top would exceed it."""
    monkeypatch.setattr("comporta.stores.failover.heartbeat.MONOTONIC", ManualClock())
    store, primary = manual_failover()
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    store.fail_over(STORE_DOWN)
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert primary.apply(ReadRecord(REJOIN_KEY, "")) is None
    store.fail_over(STORE_DOWN)  # so soon again: the store itself may be down
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert primary.apply(ReadRecord(REJOIN_KEY, "")) is not None


@pytest.mark.parametrize("is_new", [False, True])
def test_recovery__slow_first_probe__waits_to_rejoin_unless_the_worker_is_new(
    monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """A server that hung answers once it continues, and other workers may have failed over before."""
    clock = ManualClock()
    monkeypatch.setattr("comporta.stores.failover.heartbeat.MONOTONIC", clock)
    store, primary = manual_failover()
    if not is_new:
        store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    store.fail_over(STORE_DOWN)
    clock.advance(0.05)
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert (primary.apply(ReadRecord(REJOIN_KEY, "")) is None) == is_new


def test_recovery__after_a_failed_probe__waits_to_rejoin() -> None:
    store, primary = manual_failover()
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    run_heartbeat(store)
    primary.error = None
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert primary.apply(ReadRecord(REJOIN_KEY, "")) is not None


def test_probe__store_that_flaps__pauses_longer_each_time() -> None:
    store, _ = manual_failover()
    first = store.heartbeat._probe_pause
    for _ in range(3):
        store.fail_over(STORE_DOWN)
        store.recover()
    assert store.heartbeat._probe_pause > first


def test_recovery__primary_with_probe_and_batches__uses_both() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    calls: list[str] = []

    class BatchingStore(FailingStore):
        def probe(self) -> None:
            calls.append("probe")

        def apply_many(self, operations: Sequence[Operation[Any]]) -> list[Any]:
            calls.append(f"{len(operations)} reports")
            return super().apply_many(operations)

    primary.__class__ = BatchingStore
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(0.1)
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    primary.error = None
    run_heartbeat(store)
    assert calls == ["probe", "1 reports"]


def test_reports__states_without_reports__are_none() -> None:
    store, _ = manual_failover()
    share = store.fail_over(STORE_DOWN)
    share.store.apply(WriteRecord("s", "k", b"x", None))
    assert share.collect_reports() == []


@pytest.mark.parametrize("error", [StateTypeError("a key of another type"), StateFullError("no room")])
def test_recovery__registry_and_rejoin_keys_unusable__still_happens(error: StateError) -> None:
    store, primary = manual_failover()
    store.fail_over(STORE_DOWN)
    apply = primary.apply

    def apply_or_refuse(operation: Operation[Any]) -> Any:
        if isinstance(operation, RecordHeartbeat | ScheduleRejoin):
            raise error
        return apply(operation)

    primary.apply = apply_or_refuse  # type: ignore[method-assign]
    assert run_heartbeat(store) == HEARTBEAT_SECONDS
    assert fallback_of(store) is None


def test_reports__interrupted__lose_only_those_that_may_have_arrived() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "0", 1))
    clock.advance(1)
    for number in range(20):
        store.apply(AcquireOperation(TEN_PER_SECOND, str(number), 1))
    primary.error = None
    reports = 0
    apply = primary.apply

    def apply_until_third_report(operation: Operation[Any]) -> Any:
        nonlocal reports
        if isinstance(operation, ChargeOperation):
            reports += 1
            if reports == 3:
                raise STORE_DOWN
            if reports == 5:
                raise StateTypeError("a key of another type")
        return apply(operation)

    primary.apply = apply_until_third_report  # type: ignore[method-assign]
    run_heartbeat(store)
    assert store.local_share is not None
    assert len(store.local_share.pending_reports) == 17
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert reports == 20


def test_reports__more_keys_than_one_batch__are_collected_once() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(1)
    for number in range(1200):
        assert store.apply(AcquireOperation(TEN_PER_SECOND, str(number), 1)) == 0
    assert store.local_share is not None
    assert len(store.local_share.collect_reports()) == 1200
    assert store.local_share.collect_reports() == []


def test_update_states__key_removed_meanwhile__is_skipped() -> None:
    store, _ = manual_failover()
    local = store.fail_over(STORE_DOWN).store
    for number in range(3):
        local.apply(WriteRecord("s", str(number), b"x", None))

    def remove_first(space: str, key: str, *_: object) -> None:
        local._spaces[space].table.pop("0", None)

    local.update_states(remove_first)
