"""What workers that share a circuit see of each other (A2), and what they do during an outage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.breaker.drivers import Driver
from tests.stores.manual_heartbeat import FailingStore, manual_failover, run_heartbeat

from comporta import CircuitBreaker, StateError, StateUnavailableError, events
from comporta.breaker.config import BreakerConfig
from comporta.breaker.operation import BreakerOperation, CircuitSnapshot
from comporta.breaker.state import CLOSED, EMPTY_CIRCUIT, OPEN, REPORT_OPEN, CircuitRequest, ForcedState
from comporta.stores.failover.store import FailoverStore
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

Pair = Callable[..., tuple[Driver, Driver]]
GONE = StateUnavailableError("the server is gone")


def test_pair__one_records_fifty_failures__the_other_is_degraded(pair: Pair) -> None:
    one, two = pair(threshold=50, cooldown_seconds=120)
    for _ in range(50):
        one.record_failure()
    assert two.breaker.is_degraded is True
    assert two.refused() is not None


def test_pair__one_opens__the_other_sees_it_within_the_staleness(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=1, staleness=0.25)
    assert two.refused() is None
    one.fails()
    clock.advance(0.25)
    assert two.refused() is not None


def test_pair__half_open__both_share_one_probe(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=1, cooldown_seconds=10, probe_seconds=5)
    one.fails()
    assert two.breaker.is_degraded is True
    clock.advance(10)
    probe = two.allow()
    assert probe.probe
    assert not one.allow()
    [out] = one.get_state().probes
    assert out.owner.rpartition(":")[2].isdigit()
    two.record_success(probe)
    clock.advance(0.25)
    assert one.refused() is None


def test_pair__success_between_failures__restarts_the_streak(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=2)
    assert two.refused() is None
    one.fails()
    clock.advance(0.1)
    assert two.refused() is None  # its view does not have the failure yet, so the success is not reported
    clock.advance(0.1)
    two.fails()
    assert one.get_state().failures == 1


def test_pair__success_before_the_first_failure__restarts_nothing(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=2)
    assert two.refused() is None
    clock.advance(0.1)
    one.fails()
    clock.advance(0.1)
    two.fails()
    assert one.get_state().phase == "open"


def test_pair__success_while_failures_are_known__is_reported(pair: Pair, clock: ManualClock) -> None:
    one, two = pair(threshold=5)
    one.fails(3)
    assert two.refused() is None
    assert one.get_state().failures == 0


def test_force__by_one__reaches_the_other(pair: Pair, clock: ManualClock) -> None:
    one, two = pair()
    assert two.refused() is None
    one.force("open", "moving")
    clock.advance(0.25)
    error = two.refused()
    assert error is not None
    assert error.reason == "moving"


@pytest.fixture
def failover(clock: ManualClock) -> tuple[FailoverStore, FailingStore]:
    return manual_failover(clock)


def _driver(store: FailoverStore, **config: object) -> Driver:
    return Driver(CircuitBreaker("pncp", state=store, **config), None)  # type: ignore[arg-type]


def test_fallback__open_when_last_seen__stays_open_until_its_deadline(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=10)
    driver.fails()
    primary.error = GONE
    for _ in range(19):
        clock.advance(0.5)
        error = driver.refused()
        assert error is not None
        assert error.reason == "OSError: no route"
        assert driver.breaker.is_degraded is True
    assert driver.breaker.fallback is not None
    clock.advance(0.5)
    assert driver.breaker.is_degraded is False
    first = driver.allow()
    assert first.probe
    assert not driver.allow()
    driver.record_success(first)
    assert driver.breaker.phase == "closed"
    assert driver.refused() is None


def test_fallback__never_seen_before__is_closed_and_opens_at_its_share_of_the_threshold(
    failover: tuple[FailoverStore, FailingStore],
) -> None:
    store, primary = failover
    store.heartbeat.worker_count.record(3)
    primary.error = GONE
    driver = _driver(store, threshold=8)
    driver.fails(2)
    assert driver.breaker.phase == "closed"
    driver.fails()
    assert driver.breaker.phase == "open"
    assert driver.get_state().fallback is not None


def test_fallback__forced_when_last_seen__stays_forced(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store)
    driver.force("open", "moving")
    primary.error = GONE
    clock.advance(1)
    error = driver.refused()
    assert error is not None
    assert error.reason == "moving"
    with pytest.raises(StateUnavailableError):
        driver.force(None)


def test_fallback__force_revoked_without_calls__is_not_forced(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    operator = CircuitBreaker("pncp", state=primary)
    operator.sync.force("open", "moving")
    driver = _driver(store)
    assert driver.refused() is not None
    run_heartbeat(store)
    clock.advance(60)
    operator.sync.force(None)
    run_heartbeat(store)
    primary.error = GONE
    clock.advance(60)
    assert driver.refused() is None


def test_fallback__ramp_when_last_seen__restarts_the_ramp(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=10, ramp_steps=1, ramp_seconds=5)
    driver.fails()
    clock.advance(10)
    assert driver.refused() is None
    primary.error = GONE
    clock.advance(4)
    assert driver.get_state().share == 0.5
    clock.advance(5)
    assert driver.breaker.phase == "closed"


def test_recovery__opened_during_the_outage__opens_the_shared_circuit(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=10)
    assert driver.refused() is None
    clock.advance(1)
    primary.error = GONE
    driver.fails()
    assert driver.breaker.phase == "open"
    primary.error = None
    clock.advance(4)
    run_heartbeat(store)
    assert store.local_share is None
    state = CircuitBreaker("pncp", 1, 10, state=primary).sync.get_state()
    assert (state.phase, state.reason) == ("open", "OSError: no route")
    error = driver.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(6)
    clock.advance(6)
    assert driver.refused() is None


def test_recovery__opened_before_others_closed_it__does_not_reopen(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    others = CircuitBreaker("pncp", 1, 60, state=primary)
    driver = _driver(store, threshold=1, cooldown_seconds=60)
    assert driver.refused() is None
    primary.error = GONE
    driver.fails()
    primary.error = None
    clock.advance(1)
    others.sync.record_failure("here, too")
    clock.advance(1)
    others.sync.record_success()
    run_heartbeat(store)
    assert store.local_share is None
    assert others.phase == "closed"
    assert driver.refused() is None


@pytest.mark.parametrize("asked_meanwhile", [True, False])
def test_recovery__server_restarts_empty__stays_open_until_its_deadline(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock, *, asked_meanwhile: bool
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=10)
    driver.fails()
    primary.error = GONE
    clock.advance(1)
    run_heartbeat(store)
    if asked_meanwhile:
        assert driver.refused() is not None
    primary.close()  # the server loses its state
    primary.error = None
    clock.advance(3)
    run_heartbeat(store)
    assert store.local_share is None
    state = CircuitBreaker("pncp", 1, 10, state=primary).sync.get_state()
    assert (state.phase, state.reason) == ("open", "OSError: no route")
    error = driver.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(6)
    clock.advance(6)
    assert driver.refused() is None


def test_recovery__server_restarts_empty_after_the_deadline__does_not_reopen(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=10)
    driver.fails()
    primary.error = GONE
    clock.advance(1)
    run_heartbeat(store)
    primary.close()
    primary.error = None
    clock.advance(9)
    run_heartbeat(store)
    assert store.local_share is None
    assert driver.refused() is None


@pytest.mark.parametrize(("workers", "phase"), [(1, "open"), (2, "closed")])
def test_recovery__opened_during_the_outage__needs_the_quorum(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock, workers: int, phase: str
) -> None:
    store, primary = failover
    store.heartbeat.worker_count.record(workers)
    driver = _driver(store, threshold=1, cooldown_seconds=60, quorum=2)
    assert driver.refused() is None
    primary.error = GONE
    driver.fails()
    primary.error = None
    clock.advance(1)
    run_heartbeat(store)
    assert driver.get_state().phase == phase


def test_recovery__two_opened_during_the_outage__reach_the_quorum(clock: ManualClock) -> None:
    rules = BreakerConfig(1, 60, quorum=2)._rules
    store = MemoryStore(clock)
    for owner, phase in (("a:1", CLOSED), ("a:1", CLOSED), ("b:2", OPEN)):
        clock.advance(1)
        request = CircuitRequest(
            REPORT_OPEN, remaining_us=50_000_000, age_us=10_000_000, owner=owner, reason="down"
        )
        assert (
            store.apply(
                BreakerOperation("n", rules, request, lambda: CircuitSnapshot(EMPTY_CIRCUIT, ForcedState()))
            ).phase
            == phase
        )


def test_fallback__few_of_many_calls_fail__successes_count_in_the_ratio(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=None, failure_ratio=0.5, minimum_calls=5)
    primary.error = GONE
    for _ in range(10):
        clock.advance(0.1)
        driver.fails()
        for _ in range(9):
            assert driver.refused() is None
    assert driver.breaker.phase == "closed"


def test_recovery__closed_by_others_during_the_outage__is_closed(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=60)
    driver.fails()
    primary.error = GONE
    clock.advance(1)
    assert driver.refused() is not None
    primary.error = None
    CircuitBreaker("pncp", 1, 60, state=primary).sync.record_success()
    run_heartbeat(store)
    assert driver.refused() is None


def test_poller__breaker_in_use__the_heartbeat_refreshes_the_view(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1, cooldown_seconds=60)
    assert driver.refused() is None
    CircuitBreaker("pncp", 1, 60, state=primary).sync.record_failure("elsewhere")
    clock.advance(0.2)
    run_heartbeat(store)
    calls = primary.calls
    error = driver.refused()
    assert error is not None
    assert error.reason == "elsewhere"
    assert primary.calls == calls


def test_poller__breaker_only_read__the_heartbeat_refreshes_the_view(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    breaker = _driver(store).breaker
    assert breaker.is_degraded is False
    for _ in range(100):
        clock.advance(0.2)
        run_heartbeat(store)
        calls = primary.calls
        assert breaker.is_degraded is False
        assert primary.calls == calls


def test_poller__breaker_idle__stops_polling(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, _ = failover
    driver = _driver(store)
    assert driver.breaker._view.poller.heartbeat_operation() is None
    assert driver.refused() is None
    assert driver.breaker._view.poller.heartbeat_operation() is not None
    clock.advance(11)
    assert driver.breaker._view.poller.heartbeat_operation() is None
    assert driver.refused() is None
    assert driver.breaker._view.poller.heartbeat_operation() is not None


def test_poller__long_staleness__polls_no_more_often_than_needed(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, _ = failover
    driver = _driver(store, staleness=10.0)
    assert driver.refused() is None
    assert driver.breaker._view.poller.heartbeat_operation() is None
    clock.advance(9)
    assert driver.breaker._view.poller.heartbeat_operation() is not None


def test_poller__calls_were_counted__reports_them(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, _ = failover
    driver = _driver(store, threshold=None, failure_ratio=0.5, minimum_calls=4)
    for _ in range(6):
        assert driver.refused() is None
    clock.advance(11)
    assert driver.breaker._view.poller.heartbeat_operation() is not None
    assert driver.breaker._view.counters.calls == 0


def test_counters__after_a_fork__the_child_does_not_report_the_parents_calls(
    failover: tuple[FailoverStore, FailingStore],
) -> None:
    view = _driver(failover[0], threshold=None, failure_ratio=0.5).breaker._view
    view.counters.count_success()
    view.after_fork()
    assert view.counters.calls == 0


def test_success__of_an_earlier_generation__does_not_restart_the_streak(
    pair: Pair, clock: ManualClock
) -> None:
    one, two = pair(threshold=3, cooldown_seconds=10)
    old = two.allow()
    one.fails(3)
    clock.advance(10)
    assert two.refused() is None
    two.fails(2)
    clock.advance(1)
    two.record_success(old)
    clock.advance(1)
    two.fails()
    assert one.get_state().phase == "open"


def test_reply__overtaken_by_a_later_one__is_dropped(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _driver(store, threshold=1)
    assert driver.refused() is None
    operation = driver.breaker._view.poller.heartbeat_operation()
    assert operation is not None
    old = primary.apply(operation)
    clock.advance(0.01)
    driver.fails()
    driver.breaker._view.poller.on_heartbeat_reply(old)
    assert driver.breaker.phase == "open"


@pytest.mark.parametrize(("quorum", "workers", "phase"), [(2, 1, "open"), (2, 2, "closed")])
def test_quorum__one_worker_fails__opens_only_if_it_is_the_only_one(
    failover: tuple[FailoverStore, FailingStore], quorum: int, workers: int, phase: str
) -> None:
    store, _ = failover
    store.heartbeat.worker_count.record(workers)
    driver = _driver(store, threshold=3, quorum=quorum)
    driver.fails(3)
    assert driver.breaker.phase == phase


def test_store_error__before_a_call_raises__after_it_does_not_replace_the_result(
    clock: ManualClock,
) -> None:
    primary = FailingStore(clock)
    breaker = CircuitBreaker("n", 5, state=primary)
    assert Driver(breaker, None).refused() is None
    primary.error = GONE
    with pytest.raises(ZeroDivisionError):
        breaker(lambda: 1 / 0)()
    with pytest.raises(StateError):
        breaker.sync.record_failure()


def test_events__transition_by_another_worker__is_published_here_too(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    CircuitBreaker("pncp", 1, state=primary).sync.record_failure("elsewhere")
    count = len(events.latest_events())
    assert _driver(store, threshold=1).breaker.is_degraded is True
    assert "breaker_opened" in [event.kind for event in events.latest_events()[min(count, 999) :]]
