"""Failures in a row are counted exactly: by concurrent callers, on servers, and through outages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest
from tests.breaker.drivers import Driver
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url
from tests.stores.manual_heartbeat import FailingStore, another_worker, manual_failover, run_heartbeat
from tests.support import wait_until

from comporta import CircuitBreaker, CircuitOpenError, StateUnavailableError
from comporta.breaker.state import CircuitRequest
from comporta.breaker.store_clock import StoreClock
from comporta.stores.failover.store import FailoverStore
from comporta.stores.registry import close_stores
from comporta.testing import ManualClock, Server

THREADS = 5
ROUNDS = 300
GONE = StateUnavailableError("the server is gone")
Pair = Callable[..., tuple[Driver, Driver]]


@pytest.fixture(params=["shared", "server"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "server":
        with Server() as server:
            yield f"{server.url}?timeout=5"
            close_stores()
    else:
        name = new_state_name()
        yield shared_url(name)
        close_stores()
        remove_shared_state(name)


def _fail() -> None:
    raise OSError("down")


@pytest.mark.unmeasured
def test_streak__as_many_threads_as_the_threshold_fail_after_a_success__opens(url: str) -> None:
    breaker = CircuitBreaker("streak", THREADS, 600, state=url)
    succeed, fail = breaker(bool), breaker(_fail)
    barrier = Barrier(THREADS)

    def fail_together(_: int) -> None:
        barrier.wait()
        with suppress(OSError):
            fail()

    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            breaker.sync.reset()
            succeed()
            list(pool.map(fail_together, range(THREADS)))
            assert breaker.sync.get_state().phase == "open"


def test_streak__success_between_failures_on_a_server__restarts_it() -> None:
    with Server() as server:
        breaker = CircuitBreaker("streak", 3, 600, state=f"{server.url}?timeout=5")
        succeed, fail = breaker(bool), breaker(_fail)
        for _ in range(50):
            for _ in range(2):
                with pytest.raises(OSError, match="down"):
                    fail()
            succeed()
        assert breaker.sync.get_state().phase == "closed"
        close_stores()


def test_store_clock__replies__bound_the_time_of_the_store_from_below() -> None:
    clock = StoreClock()
    assert clock.to_store_us(5) == -1
    clock.record(1_000_100, 50, 150)
    assert clock.to_store_us(150) == 1_000_100
    assert clock.to_store_us(-1) == -1
    clock.record(1_000_260, 250, 260)  # a faster reply: the bound is closer
    assert clock.to_store_us(260) == 1_000_260
    clock.record(1_010_260, 10_100, 10_900)  # a slower one: the bound stays, less the drift
    assert 1_010_890 <= clock.to_store_us(10_900) < 1_010_900
    clock.record(500_000, 11_000, 11_100)  # the store's clock was set back
    assert clock.to_store_us(11_100) == 500_000


def _failures_until_open(
    breaker: CircuitBreaker, pause_after: int, server: Server, *, thaw_after: int
) -> int:
    """Fail until the breaker refuses, while the server is suspended; return the number of failures."""
    call = breaker(_fail)
    for number in range(100):
        if number == pause_after:
            server.freeze()
        if number == thaw_after:
            server.thaw()
            wait_until(lambda: breaker.fallback is None)
        try:
            call()
        except CircuitOpenError:
            return number
        except OSError:
            continue
    raise AssertionError("the circuit did not open")


@pytest.mark.parametrize(("pause_after", "thaw_after"), [(1, 2), (2, 3), (2, 4), (3, 4), (4, 5), (4, 100)])
def test_streak__server_suspended_in_the_middle_of_it__opens_at_the_threshold(
    pause_after: int, thaw_after: int
) -> None:
    with Server() as server:
        breaker = CircuitBreaker("streak", 5, 600, state=server.url)
        breaker(bool)()
        failures = _failures_until_open(breaker, pause_after, server, thaw_after=thaw_after)
        assert failures == 5
        server.thaw()
        wait_until(lambda: breaker.fallback is None)
        assert breaker.sync.get_state().phase == "open"
        close_stores()


def test_streak__server_pauses_its_clients__opens_at_the_threshold() -> None:
    with Server() as server:
        breaker = CircuitBreaker("streak", 5, 600, state=server.url)
        call = breaker(_fail)
        for number in range(5):
            if number == 4:
                server.command("CLIENT", "PAUSE", 80, "ALL")
            with pytest.raises(OSError, match="down"):
                call()
        with pytest.raises(CircuitOpenError):
            call()
        wait_until(lambda: breaker.fallback is None)
        assert breaker.sync.get_state().phase == "open"
        close_stores()


@pytest.fixture
def failover(clock: ManualClock) -> tuple[FailoverStore, FailingStore]:
    return manual_failover(clock)


def _worker(store: FailoverStore, workers: int, **config: object) -> Driver:
    store.heartbeat.worker_count.record(workers)
    return Driver(CircuitBreaker("pncp", state=store, **config), None)  # type: ignore[arg-type]


def _fail_elsewhere(breaker: CircuitBreaker, times: int) -> None:
    """Record failures of another worker."""
    for _ in range(times):
        request = CircuitRequest("fail", owner="elsewhere:1", reason="down")
        breaker.store.apply(breaker._view.builder._operation(request))


@pytest.mark.parametrize(
    ("workers", "known", "allowed"), [(1, 0, 5), (1, 3, 2), (2, 0, 3), (2, 3, 1), (2, 4, 1), (4, 1, 1)]
)
def test_fallback__streak_known_before__this_worker_gets_its_part_of_what_is_left(
    failover: tuple[FailoverStore, FailingStore], workers: int, known: int, allowed: int
) -> None:
    store, primary = failover
    driver = _worker(store, workers, threshold=5)
    assert driver.refused() is None
    driver.fails(known)
    primary.error = GONE
    driver.fails(allowed)
    assert driver.breaker.phase == "open"


@pytest.mark.parametrize(
    ("threshold", "elsewhere", "parts"), [(12, 6, (2, 4)), (11, 4, (3, 4)), (5, 4, (1, 2))]
)
@pytest.mark.parametrize("aware", [0, 1, 3])
def test_fallback__failures_since_the_last_poll__add_a_part_to_what_each_unaware_worker_allows(
    clock: ManualClock, threshold: int, elsewhere: int, parts: tuple[int, int], aware: int
) -> None:
    """Three workers poll before the failures of another one, and the first ``aware`` of them once more.

    ``parts``: what a worker allows that knows of these failures, and one that does not.
    """
    part, part_if_unaware = parts
    primary = FailingStore(clock)
    stores = [another_worker(primary) for _ in range(3)]
    workers = [_worker(store, 3, threshold=threshold) for store in stores]
    for store, driver in zip(stores, workers, strict=True):
        assert driver.refused() is None
        pause = run_heartbeat(store)
        assert pause is not None
        assert pause <= driver.breaker.config.staleness
    _fail_elsewhere(CircuitBreaker("pncp", threshold, state=primary), elsewhere)
    for store in stores[:aware]:
        run_heartbeat(store)
    primary.error = GONE
    for number, driver in enumerate(workers):
        allowed = part if number < aware else part_if_unaware
        driver.fails(allowed - 1)
        assert driver.breaker.phase == "closed"
        driver.fails()
        assert driver.breaker.phase == "open"
    failures = elsewhere + aware * part + (3 - aware) * part_if_unaware
    part_of_elsewhere = -(-elsewhere // 3)
    assert failures <= threshold + 3 - 1 + (3 - aware) * part_of_elsewhere


@pytest.mark.parametrize(("workers", "part"), [(2, 2), (3, 2), (4, 1)])
def test_fallback__one_worker_cut_off__allows_its_part_and_the_others_reach_the_threshold(
    failover: tuple[FailoverStore, FailingStore], workers: int, part: int
) -> None:
    store, primary = failover
    cut_off = _worker(store, workers, threshold=6)
    others = Driver(CircuitBreaker("pncp", 6, state=primary), None)
    cut_off.fails(2)
    primary.error = GONE
    cut_off.fails(part - 1)
    assert cut_off.breaker.phase == "closed"
    cut_off.fails()
    assert cut_off.breaker.phase == "open"
    primary.error = None  # the others use the store; the worker has not probed it again
    others.fails(3)
    assert others.get_state().phase == "closed"
    others.fails()
    assert others.get_state().phase == "open"
    assert isinstance(cut_off.refused(), CircuitOpenError)


def test_fallback__success_during_the_outage__restarts_the_streak(
    failover: tuple[FailoverStore, FailingStore], clock: ManualClock
) -> None:
    store, primary = failover
    driver = _worker(store, 1, threshold=5)
    driver.fails(4)
    clock.advance(0.1)
    primary.error = GONE
    assert driver.refused() is None
    clock.advance(0.1)
    driver.fails(2)
    assert driver.breaker.phase == "closed"
    primary.error = None
    clock.advance(1)
    run_heartbeat(store)
    assert driver.get_state().failures == 2


def test_recovery__failures_of_two_workers__are_added_to_the_shared_streak(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    others = CircuitBreaker("pncp", 9, 60, state=primary)
    driver = _worker(store, 1, threshold=9, cooldown_seconds=60)
    _fail_elsewhere(others, 1)
    driver.fails(2)
    primary.error = GONE
    driver.fails(3)
    primary.error = None
    clock.advance(1)
    run_heartbeat(store)
    assert others.sync.get_state().failures == 6
    run_heartbeat(store)
    assert others.sync.get_state().failures == 6


def test_recovery__failures_reach_the_threshold_together__opens_the_shared_circuit(
    clock: ManualClock,
) -> None:
    store, primary = manual_failover(clock)
    driver = _worker(store, 1, threshold=3, cooldown_seconds=60)
    others = CircuitBreaker("pncp", 3, 60, state=primary)
    assert driver.refused() is None
    primary.error = GONE
    driver.fails()
    primary.error = None
    _fail_elsewhere(others, 2)
    clock.advance(1)
    run_heartbeat(store)
    state = others.sync.get_state()
    assert (state.phase, state.reason) == ("open", "failures during an outage of the store")


def test_recovery__shared_circuit_changed_meanwhile__drops_the_failures(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    driver = _worker(store, 1, threshold=9, cooldown_seconds=60)
    others = CircuitBreaker("pncp", 9, 60, state=primary)
    driver.fails(1)
    primary.error = GONE
    driver.fails(3)
    primary.error = None
    others.sync.reset()
    clock.advance(1)
    run_heartbeat(store)
    assert others.sync.get_state().failures == 0


def test_recovery__server_restarts_empty__gets_the_streak_of_this_worker(clock: ManualClock) -> None:
    store, primary = manual_failover(clock)
    driver = _worker(store, 1, threshold=9)
    driver.fails(2)
    primary.error = GONE
    driver.fails(3)
    primary.close()
    primary.error = None
    clock.advance(1)
    run_heartbeat(store)
    assert driver.get_state().failures == 5
