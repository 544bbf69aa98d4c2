"""One broken worker stops calling while the circuit of the fleet stays closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.breaker.drivers import Driver
from tests.support import wait_until

from comporta import BreakerConfig, CircuitBreaker, CircuitOpenError, Retry, Upstream, events
from comporta.breaker.flows import BreakerFlows
from comporta.flow import run
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

Pair = Callable[..., tuple[Driver, Driver]]
MakeDriver = Callable[..., Driver]
OPTIONS = {"threshold": 10, "local_threshold": 3, "cooldown_seconds": 10}


def test_local_threshold__one_of_two_workers_fails__only_that_one_stops(
    pair: Pair, clock: ManualClock
) -> None:
    broken, healthy = pair(**OPTIONS)
    for _ in range(3):
        broken.fails()
        clock.advance(0.1)
        assert healthy.refused() is None
        clock.advance(0.3)
    error = broken.refused()
    assert error is not None
    assert error.reason == "only in this worker: OSError: no route"
    assert error.retry_after == pytest.approx(9.6)
    assert healthy.refused() is None
    state = broken.get_state()
    assert (state.phase, state.worker_phase) == ("closed", "open")
    assert healthy.get_state().worker_phase == "closed"
    assert healthy.get_state().as_dict()["worker_phase"] == "closed"


def test_local_threshold__failures__count_for_the_fleet_too(pair: Pair) -> None:
    one, two = pair(threshold=4, local_threshold=3)
    one.fails(3)
    assert one.refused() is not None
    assert two.get_state().failures == 3
    two.fails()
    assert two.get_state().phase == "open"


def test_local_threshold__cooldown_over__one_probe_closes_it(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(**OPTIONS)
    assert driver.refused() is None
    driver.fails(3)
    assert driver.refused() is not None
    clock.advance(10)
    probe = driver.allow()
    assert probe.own_probe
    refused = driver.allow()
    assert (refused.allowed, refused.phase) == (False, "half_open")
    driver.record_failure("still down", probe)
    assert driver.refused() is not None
    clock.advance(10)
    probe = driver.allow()
    driver.give_back(probe)
    assert driver.refused() is None
    assert driver.get_state().worker_phase == "closed"
    driver.fails(2)
    assert driver.refused() is None
    driver.fails(2)
    assert driver.get_state().worker_phase == "closed"
    driver.fails()
    assert driver.get_state().worker_phase == "open"


def test_local_threshold__result_of_an_earlier_call__changes_nothing(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(**OPTIONS)
    assert driver.refused() is None
    early = driver.allow()
    driver.fails(3)
    driver.record_success(early)
    driver.give_back(early)
    assert driver.get_state().worker_phase == "open"


def test_local_threshold__success_without_admission_or_reset__closes_it(make: MakeDriver) -> None:
    driver = make(**OPTIONS)
    for close in (driver.record_success, driver.reset):
        driver.fails(3)
        assert driver.refused() is not None
        close()
        assert driver.refused() is None


def test_local_threshold__operator_holds_the_circuit_closed__admits_every_call(make: MakeDriver) -> None:
    driver = make(**OPTIONS)
    driver.fails(3)
    driver.force("closed", "known")
    assert driver.refused() is None
    assert driver.allow()


def test_local_threshold__fleet_refuses_the_probe__is_given_back(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(**OPTIONS)
    driver.fails(3)
    clock.advance(10)
    driver.force("open", "maintenance")
    error = driver.refused()
    assert error is not None
    assert error.forced
    driver.force(None)
    assert driver.allow().own_probe


def test_local_threshold__opens_and_closes__publishes_events_of_its_own(
    store: Store, clock: ManualClock
) -> None:
    published: list[tuple[str, str]] = []
    stop = events.listen(lambda event: published.append((event.kind, event.text)))
    driver = Driver(CircuitBreaker("pncp", state=store, **OPTIONS), None)  # type: ignore[arg-type]
    driver.fails(3)
    clock.advance(10)
    assert driver.refused() is None
    stop()
    assert published == [
        ("breaker_worker_opened", "open in this worker for 10.0 s: OSError: no route"),
        ("breaker_worker_closed", "closed again in this worker"),
    ]


def test_local_threshold__upstream_retries__stops_when_this_worker_must_not_call(clock: ManualClock) -> None:
    config = BreakerConfig(100, 10, local_threshold=2)
    retry = Retry(retries=5, base=0.001)
    state = MemoryStore(clock)
    upstream = Upstream("pncp", "1000/s", breaker=config, retry=retry, count="attempts", state=state)
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise OSError("no route")

    with pytest.raises(OSError, match="no route"):
        upstream.sync.call(fail)
    assert len(calls) == 2
    with pytest.raises(CircuitOpenError, match="only in this worker"):
        upstream.sync.call(fail)
    clock.advance(10)
    assert upstream.sync.call(lambda: "well") == "well"


def test_local_threshold__probe_cancelled_while_the_store_is_asked__is_given_back() -> None:
    clock = ManualClock()
    view = CircuitBreaker("pncp", state=MemoryStore(clock), staleness=0.25, **OPTIONS)._view  # type: ignore[arg-type]
    flows = BreakerFlows(view)
    for _ in range(3):
        run(flows.fail_flow(None, "down"))
    clock.advance(10)
    view.state.valid_until_ns = 0
    asked = flows.admit_flow()
    next(asked)
    asked.close()
    assert view.own is not None
    own = view.own
    wait_until(lambda: own.admit()[1] == 1)


def test_local_threshold__after_a_fork__the_child_starts_without_failures(make: MakeDriver) -> None:
    driver = make(**OPTIONS)
    driver.fails(3)
    driver.breaker._view.after_fork()
    assert driver.refused() is None
