"""Recovery after an outage: probes, reports of what was granted, and the rejoin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.stores.manual_heartbeat import (
    STORE_DOWN,
    TEN_PER_SECOND,
    FailingStore,
    ManualHeartbeat,
    manual_failover,
    run_heartbeat,
)
from tests.support import fallback_of

from comporta.errors import (
    StateAuthError,
    StateError,
    StateFullError,
    StateMovingError,
    StateTypeError,
)
from comporta.limits.acquire import AcquireOperation
from comporta.limits.charge import ChargeOperation
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.stores.base import Operation
from comporta.stores.failover.barrier import LEAD_US, RejoinRequest
from comporta.stores.failover.recovery import PROBE_SECONDS_MAX
from comporta.stores.failover.store import FailoverStore
from comporta.stores.failover.worker_registry import (
    HEARTBEAT_SECONDS,
    REGISTRY_KEY,
    REJOIN_SPACE,
    RecordHeartbeat,
    ScheduleRejoin,
    Worker,
)
from comporta.stores.records import ReadRecord, WriteRecord
from comporta.testing import ManualClock

ELSEWHERE = Worker("elsewhere", 1, 1, 1)


def run_until_back(store: FailoverStore) -> None:
    """Probe until this worker has rejoined."""
    for _ in range(20):
        if store.local_share is None:
            return
        run_heartbeat(store)
    raise AssertionError("it has not rejoined")


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


def test_recovery__fault_of_a_sole_worker__does_not_wait_to_rejoin() -> None:
    store, primary = manual_failover(clock := ManualClock())
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    store.fail_over(STORE_DOWN)
    began_ns = clock.now_ns()
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert clock.now_ns() == began_ns
    assert primary.apply(ReadRecord(REJOIN_SPACE, REGISTRY_KEY)) is None
    store.fail_over(STORE_DOWN)  # the outages follow each other quickly, so the store itself may be down
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert primary.apply(ReadRecord(REJOIN_SPACE, REGISTRY_KEY)) is not None


def one_of_two(clock: ManualClock) -> tuple[FailoverStore, FailingStore]:
    """Return the store of a worker that knows of another one and has just lost the engine for a moment."""
    store, primary = manual_failover(clock)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    run_heartbeat(store)
    store.fail_over(STORE_DOWN)
    return store, primary


def call_later(
    primary: FailingStore, clock: ManualClock, seconds: float, action: Callable[[], object]
) -> None:
    """Do something before each probe that comes at least this many seconds from now."""
    due_ns, apply = clock.now_ns() + int(seconds * 1e9), primary.apply

    def act_and_apply(operation: Operation[Any]) -> Any:
        if clock.now_ns() >= due_ns and isinstance(operation, RecordHeartbeat):
            action()
        return apply(operation)

    primary.apply = act_and_apply  # type: ignore[method-assign]


@pytest.mark.parametrize("others_rejoin", [False, True])
def test_recovery__brief_outage__looks_for_others_before_it_rejoins(others_rejoin: bool) -> None:
    """After a short hang, this worker may be the first that finds the store in order."""
    clock = ManualClock()
    store, primary = one_of_two(clock)
    other, apply = RejoinRequest(ELSEWHERE.member, 0, 2, 600_000, 0), primary.apply
    if others_rejoin:
        call_later(primary, clock, 0.1, lambda: apply(ScheduleRejoin(ELSEWHERE, other)))
    began_ns = clock.now_ns()
    run_heartbeat(store)
    assert fallback_of(store) is None
    seconds = (clock.now_ns() - began_ns) / 1e9
    assert seconds == pytest.approx(0.7 if others_rejoin else 0.2)
    assert store.heartbeat.registration.epoch == (1 if others_rejoin else 0)


def test_recovery__looks_for_others__grants_nothing_and_no_other_outage_begins() -> None:
    """The others may use the whole limit, and calls that the same fault has hit still fail."""
    clock = ManualClock()
    store, primary = one_of_two(clock)
    share, waits = store.local_share, []

    def call() -> None:
        if store.local_share is not None:
            assert store.fail_over(STORE_DOWN) is share
            waits.append(store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)))

    call_later(primary, clock, 0.01, call)
    run_heartbeat(store)
    assert waits == [50_000] * 4
    assert fallback_of(store) is None


def test_recovery__stopped_while_it_looks_for_others__does_not_rejoin() -> None:
    clock = ManualClock()
    store, primary = one_of_two(clock)
    heartbeat = store.heartbeat
    assert isinstance(heartbeat, ManualHeartbeat)
    call_later(primary, clock, 0.1, heartbeat.stop)
    assert run_heartbeat(store) == 0.0
    assert store.local_share is not None
    assert not store.local_share.outage.is_ending
    assert run_heartbeat(store) is None


@pytest.mark.parametrize(
    ("age", "is_running", "seconds"), [(0.1, False, 0.5), (0.1, True, 1.6), (0.3, False, 1.6)]
)
def test_recovery__short_outage__waits_briefly_for_workers_that_do_not_come(
    age: float, is_running: bool, seconds: float
) -> None:
    """Those that made no call have not noticed the outage and use the whole limit meanwhile."""
    clock = ManualClock()
    store, primary = one_of_two(clock)
    primary.connect_seconds_max = 1.0
    clock.advance(age)
    if is_running:
        primary.apply(ScheduleRejoin(ELSEWHERE, RejoinRequest(ELSEWHERE.member, 0, 2, 1_600_000, 0)))
    began_ns = clock.now_ns()
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert (clock.now_ns() - began_ns) / 1e9 == pytest.approx(seconds)


@pytest.mark.parametrize("is_new", [False, True])
def test_recovery__slow_first_probe__waits_to_rejoin_unless_the_worker_is_new(is_new: bool) -> None:
    """A server that hung answers once it continues, and other workers may have failed over before."""
    clock = ManualClock()
    store, primary = manual_failover(clock)
    if not is_new:
        store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    store.fail_over(STORE_DOWN)
    clock.advance(0.05)
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert (primary.apply(ReadRecord(REJOIN_SPACE, REGISTRY_KEY)) is None) == is_new


def test_recovery__after_a_failed_probe__waits_to_rejoin() -> None:
    store, primary = manual_failover()
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    run_heartbeat(store)
    primary.error = None
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert primary.apply(ReadRecord(REJOIN_SPACE, REGISTRY_KEY)) is not None


def test_probe__store_that_flaps__pauses_longer_each_time() -> None:
    store, _ = manual_failover()
    first = store.heartbeat.recovery._probe_pause
    for _ in range(3):
        store.fail_over(STORE_DOWN)
        store.recover()
    assert store.heartbeat.recovery._probe_pause > first


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


@pytest.mark.parametrize(
    "error",
    [StateTypeError("a key of another type"), StateFullError("no room"), StateMovingError("a key moves")],
)
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
    store.fail_over(
        STORE_DOWN
    )  # the outages follow each other quickly, so the other workers may have lost the store too
    assert run_heartbeat(store) == HEARTBEAT_SECONDS
    assert fallback_of(store) is None


def test_reports__interrupted__are_kept_until_acknowledged() -> None:
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
    assert len(store.heartbeat.recovery._reports) == 18, "the third may have arrived: it is sent again"
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert reports == 21


def test_reports__of_keys_that_a_cluster_is_moving__are_kept_for_the_next_heartbeat() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    store.fail_over(STORE_DOWN)
    clock.advance(1)
    for key in "ab":
        assert store.apply(AcquireOperation(TEN_PER_SECOND, key, 1)) == 0
    apply, is_moving, reported = primary.apply, True, list[str]()

    def apply_or_refuse(operation: Operation[Any]) -> Any:
        if isinstance(operation, ChargeOperation):
            if operation.key == "a" and is_moving:
                raise StateMovingError("'a' is moving")
            reported.append(operation.key)
        return apply(operation)

    primary.apply = apply_or_refuse  # type: ignore[method-assign]
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert reported == ["b"]
    is_moving = False
    store.heartbeat.recovery.send_reports(primary)
    assert reported == ["b", "a"]
    assert len(store.heartbeat.recovery._reports) == 0


def test_report__fails_after_the_recovery__is_sent_with_the_next_heartbeat() -> None:
    """The second fault: the store fails again before it has acknowledged what was granted in the first."""
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(1)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 4)) == 0
    assert store.local_share is not None
    store.heartbeat.recovery.collect_reports(store.local_share)
    store.recover()
    run_heartbeat(store)
    assert store.local_share is not None, "the heartbeat found the store down"
    primary.error = None
    run_heartbeat(store)
    assert fallback_of(store) is None
    [reply] = store.apply(LimitOperation([LimitDemand(TEN_PER_SECOND.strategy, "ten", "k", 0)]))
    assert reply.remaining == 6


def test_rejoin__other_worker_known__waits_for_it_and_grants_nothing_at_the_end() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    store.apply(AcquireOperation(TEN_PER_SECOND, "other", 1))
    run_heartbeat(store)
    store.fail_over(STORE_DOWN)
    clock.advance(0.1)
    began_ns, waits = clock.now_ns(), []
    report = primary.apply_many

    def report_many(operations: Sequence[Operation[Any]]) -> list[Any]:
        waits.append(store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)))
        return report(operations)

    primary.apply_many = report_many  # type: ignore[method-assign]
    clock.advance(0.5)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert clock.now_ns() - began_ns >= 600_000_000
    assert waits[0] == 50_000, "the share is frozen"


def test_rejoin__barrier_runs__is_joined_however_short_the_outage() -> None:
    """This worker noticed the outage at its end: the others have granted from their shares for longer."""
    store, primary = manual_failover()
    run_heartbeat(store)
    primary.apply(ScheduleRejoin(ELSEWHERE, RejoinRequest(ELSEWHERE.member, 0, 2, 600_000, 0)))
    store.fail_over(STORE_DOWN)
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert store.heartbeat.registration.epoch == 1


def lose_calls(primary: FailingStore, fails: Callable[[Operation[Any], int], bool]) -> list[Operation[Any]]:
    """Fail calls of the primary, chosen by the operation and how many of its kind were applied before."""
    apply = primary.apply
    applied: list[Operation[Any]] = []

    def apply_or_fail(operation: Operation[Any]) -> Any:
        number = sum(isinstance(each, type(operation)) for each in applied)
        applied.append(operation)
        if fails(operation, number):
            raise STORE_DOWN
        return apply(operation)

    primary.apply = apply_or_fail  # type: ignore[method-assign]
    return applied


@pytest.mark.parametrize(("lost", "is_back", "epoch"), [(3, True, 1), (15, False, 2)])
def test_rejoin__store_lost_at_the_barrier__is_retried_then_waits_at_a_younger_one(
    lost: int, is_back: bool, epoch: int
) -> None:
    store, primary = manual_failover(ManualClock())
    run_heartbeat(store)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    lose_calls(
        primary, lambda operation, number: isinstance(operation, ScheduleRejoin) and 1 <= number <= lost
    )
    for _ in range(2):  # the first outage counts as this worker's own fault
        store.fail_over(STORE_DOWN)
        run_heartbeat(store)
    assert (fallback_of(store) is None) == is_back
    run_until_back(store)
    assert store.heartbeat.registration.epoch == epoch


def test_rejoin__calls_at_the_barrier_fail__share_is_frozen_until_one_is_answered() -> None:
    """The others may have rejoined without this worker."""
    clock = ManualClock()
    store, primary = manual_failover(clock)
    run_heartbeat(store)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    frozen = []

    def is_lost(operation: Operation[Any], number: int) -> bool:
        if isinstance(operation, ScheduleRejoin) and store.local_share is not None:
            frozen.append(store.local_share.outage.is_ending)
        return isinstance(operation, ScheduleRejoin) and 1 <= number <= 5

    lose_calls(primary, is_lost)
    for _ in range(2):
        store.fail_over(STORE_DOWN)
        run_heartbeat(store)
    assert frozen[:3] == [False, False, False], "the others cannot have rejoined yet"
    assert frozen[5:8] == [True, True, False]


@pytest.mark.parametrize(("lost", "epoch"), [(2, 1), (6, 2), (20, 3)])
def test_rejoin__last_report_fails__is_sent_again_and_the_barrier_is_asked(lost: int, epoch: int) -> None:
    """A worker whose report came after the moment does not know whether the others have rejoined."""
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    run_heartbeat(store)
    store.fail_over(STORE_DOWN)
    clock.advance(1)
    assert store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1)) == 0
    applied = lose_calls(
        primary, lambda operation, number: isinstance(operation, ChargeOperation) and number < lost
    )
    run_until_back(store)
    assert sum(isinstance(operation, ChargeOperation) for operation in applied) == lost + 1
    assert store.heartbeat.registration.epoch == epoch


def test_rejoin__denied_at_the_barrier__is_not_retried() -> None:
    store, primary = manual_failover(ManualClock())
    run_heartbeat(store)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    asked = 0

    def deny(operation: Operation[Any]) -> Any:
        nonlocal asked
        if isinstance(operation, ScheduleRejoin):
            asked += 1
            raise StateAuthError("NOAUTH")
        return apply(operation)

    apply = primary.apply
    primary.apply = deny  # type: ignore[method-assign]
    for _ in range(2):
        store.fail_over(STORE_DOWN)
        run_heartbeat(store)
    assert asked == 1


def test_heartbeat__after_a_recovery__comes_more_often_for_a_while() -> None:
    """Workers that rejoin later wait until this one has confirmed their barrier."""
    store, _ = manual_failover(ManualClock())
    run_heartbeat(store)
    store.fail_over(STORE_DOWN)
    run_heartbeat(store)
    assert fallback_of(store) is None
    pauses = [run_heartbeat(store) for _ in range(2)]
    assert pauses[-1] is not None
    assert pauses[-1] <= 0.2


def test_heartbeat__new_epoch__is_confirmed_at_once() -> None:
    store, primary = manual_failover()
    run_heartbeat(store)
    other = ScheduleRejoin(ELSEWHERE, RejoinRequest(ELSEWHERE.member, 0, 2, 1_600_000, 0, 1))
    assert primary.apply(other) == (1, 1_600_000)
    run_heartbeat(store)
    assert primary.apply(other) == (1, LEAD_US)


def test_fork__reports_of_the_parent__are_forgotten_in_the_child() -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    clock.advance(1)
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    assert store.local_share is not None
    store.heartbeat.recovery.collect_reports(store.local_share)
    assert len(store.heartbeat.recovery._reports) == 1
    store.heartbeat.after_fork()
    assert len(store.heartbeat.recovery._reports) == 0


@pytest.mark.parametrize(("keys", "is_early"), [(3, False), (1200, True)])
def test_reports__before_the_moment_of_the_rejoin__only_those_of_many_keys(keys: int, is_early: bool) -> None:
    """A bucket refills at the rate of the limit: what one worker reports too soon would be there again."""
    clock = ManualClock()
    store, primary = manual_failover(clock)
    primary.apply(RecordHeartbeat(ELSEWHERE))
    run_heartbeat(store)
    primary.error = STORE_DOWN
    store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
    run_heartbeat(store)
    clock.advance(1)
    for number in range(keys):
        assert store.apply(AcquireOperation(TEN_PER_SECOND, str(number), 1)) == 0
    primary.error = None
    applied: list[type] = []
    apply = primary.apply

    def record(operation: Operation[Any]) -> Any:
        applied.append(type(operation))
        if isinstance(operation, ScheduleRejoin):
            store.apply(AcquireOperation(TEN_PER_SECOND, "k", 1))
        return apply(operation)

    primary.apply = record  # type: ignore[method-assign]
    run_heartbeat(store)
    assert fallback_of(store) is None
    assert applied[::-1].index(ChargeOperation) < applied[::-1].index(ScheduleRejoin)
    assert (applied.index(ChargeOperation) < applied.index(ScheduleRejoin)) == is_early


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
