"""Breakers on every store, blocking and async, on a manual clock (A1, A3 to A5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from tests.breaker.drivers import Driver
from tests.support import wait_until

from comporta import CircuitBreaker, CircuitOpenError, events
from comporta.errors import LimitReachedError
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

MakeDriver = Callable[..., Driver]


def test_breaker__new__is_closed_and_admits_calls(make: MakeDriver) -> None:
    driver = make()
    assert driver.refused() is None
    assert driver.allow().allowed
    assert driver.breaker.phase == "closed"
    assert not driver.degraded()
    assert driver.breaker.degraded_until is None
    assert driver.breaker.fallback is None


def test_breaker__failures_in_a_row_reach_the_threshold__opens(make: MakeDriver) -> None:
    driver = make(threshold=3, cooldown_seconds=30)
    driver.fails(2)
    assert not driver.degraded()
    assert driver.breaker.consecutive_failures == 2
    driver.fails()
    assert driver.degraded()
    assert driver.breaker.phase == "open"


def test_open__call__is_refused_with_reason_start_and_retry_after(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=30)
    driver.fails()
    clock.advance(10)
    error = driver.refused()
    assert error is not None
    assert error.name == "pncp"
    assert error.reason == "OSError: no route"
    assert error.retry_after == pytest.approx(20)
    assert error.since is not None
    state = driver.get_state()
    assert state.since == pytest.approx(error.since, abs=5)
    assert state.degraded_until == pytest.approx(state.since + 30, abs=5)
    assert driver.breaker.degraded_until == pytest.approx(state.degraded_until, abs=5)


def test_open__with_block__is_refused(make: MakeDriver) -> None:
    driver = make(threshold=1)
    driver.fails()
    with pytest.raises(CircuitOpenError):
        driver.within(lambda: None)


def test_with_block__fails__counts_and_a_success_resets_the_count(make: MakeDriver) -> None:
    driver = make(threshold=2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            driver.within(lambda: 1 / 0)
        assert driver.breaker.consecutive_failures == 1
        assert driver.within(lambda: "well") == "well"
        assert driver.breaker.consecutive_failures == 0


def test_record__failures_without_admission__open_and_a_success_closes(make: MakeDriver) -> None:
    driver = make(threshold=50, cooldown_seconds=120)
    for _ in range(50):
        driver.record_failure()
    assert driver.degraded()
    assert driver.try_recover() is False
    driver.record_success()
    assert not driver.degraded()
    assert driver.breaker.consecutive_failures == 0
    assert driver.breaker.phase == "closed"


def test_is_degraded__cooldown_over_without_try_recover__is_false(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=2)
    driver.record_failure("down")
    clock.advance(1.999)
    assert driver.degraded()
    clock.advance(0.001)
    assert not driver.degraded()
    assert driver.breaker.phase == "half_open"
    assert driver.try_recover() is True
    assert driver.breaker.phase == "half_open"


def test_record_failure__ten_concurrent_calls__counts_ten(store: Store) -> None:
    breaker = CircuitBreaker("pncp", 10, state=store)

    async def fail_all() -> None:
        await asyncio.gather(*(breaker.record_failure() for _ in range(10)))
        assert breaker.consecutive_failures == 10
        assert await breaker.is_degraded_async()
        if hasattr(store, "aclose"):
            await store.aclose()

    asyncio.run(fail_all())


def test_record_failure__ten_threads__counts_all(store: Store) -> None:
    breaker = CircuitBreaker("pncp", 1000, state=store)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: breaker.sync.record_failure(), range(100)))
    assert breaker.sync.get_state().failures == 100


def test_half_open__probe_succeeds__closes(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=2, cooldown_seconds=10)
    driver.fails(2)
    clock.advance(10)
    assert driver.refused() is None
    assert driver.breaker.phase == "closed"
    assert driver.breaker.consecutive_failures == 0


def test_half_open__probe_fails__opens_for_a_whole_cooldown(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=2, cooldown_seconds=10)
    driver.fails(2)
    clock.advance(10)
    driver.fails()
    assert driver.degraded()
    error = driver.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(10)


def test_half_open__several_probes_configured__admits_that_many(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=1, cooldown_seconds=10, probes=2, probe_seconds=5)
    driver.fails()
    clock.advance(10)
    answers = [driver.allow() for _ in range(10)]
    assert [bool(answer) for answer in answers] == [True, True, *[False] * 8]
    assert answers[2].phase == "half_open"
    assert answers[2].retry_after == pytest.approx(5)
    state = driver.get_state()
    assert [probe.seconds_left for probe in state.probes] == [5, 5]
    driver.record_success(answers[0])
    assert driver.breaker.phase == "half_open"
    assert not driver.allow()
    driver.record_success(answers[1])
    assert driver.breaker.phase == "closed"


def test_half_open__probe_without_result__is_free_at_its_deadline_despite_refusals(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=10, probe_seconds=5)
    driver.fails()
    clock.advance(10)
    lost = driver.allow()
    for _ in range(49):
        clock.advance(0.1)
        assert not driver.allow()
    clock.advance(0.1)
    second = driver.allow()
    assert second.probe
    driver.record_failure("late", lost)
    driver.record_success(lost)
    assert driver.breaker.phase == "half_open"
    driver.record_success(second)
    assert driver.breaker.phase == "closed"


def test_half_open__probe_running_longer_than_the_usual_ttl__no_other_call_is_admitted(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=10, probe_seconds=600)
    driver.fails()
    clock.advance(10)
    probe = driver.allow()
    clock.advance(599)
    assert driver.get_state().phase == "half_open"
    assert not driver.allow()
    driver.record_success(probe)
    assert driver.get_state().phase == "closed"


def test_half_open__probe_released__is_free_for_the_next_call(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=1, cooldown_seconds=10)
    driver.fails()
    clock.advance(10)
    first = driver.allow()
    assert first
    assert not driver.allow()
    driver.give_back(first)
    assert driver.allow()


def test_half_open__results_without_admission__open_or_close(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=1, cooldown_seconds=10)
    for _ in range(2):
        driver.record_failure()
        assert driver.breaker.phase == "open"
        clock.advance(10)
        assert driver.breaker.phase == "half_open"
    driver.record_success()
    assert driver.breaker.phase == "closed"


def test_generation__result_from_before_a_transition__changes_nothing(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=2, cooldown_seconds=10)
    early = [driver.allow() for _ in range(6)]
    driver.fails(2)
    assert driver.breaker.phase == "open"
    driver.record_success(early[0])
    driver.record_failure("x", early[1])
    assert driver.breaker.phase == "open"
    assert driver.breaker.consecutive_failures == 2
    clock.advance(10)
    probe = driver.allow()
    driver.record_success(early[2])  # a stale success does not close it
    driver.record_failure("x", early[3])
    assert driver.breaker.phase == "half_open"
    driver.record_success(probe)
    driver.record_failure("x", early[4])
    driver.record_failure("x", early[5])
    assert driver.breaker.phase == "closed"
    assert driver.breaker.consecutive_failures == 0


def test_open__more_failures__are_counted_but_do_not_extend_the_cooldown(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=2, cooldown_seconds=10)
    driver.fails(2)
    clock.advance(6)
    driver.record_failure()
    assert driver.breaker.consecutive_failures == 3
    clock.advance(4)
    assert driver.breaker.phase == "half_open"


def test_reset__open__closes_and_clears_all_counts(make: MakeDriver) -> None:
    driver = make(threshold=1)
    before = driver.allow()
    driver.fails()
    driver.reset()
    assert driver.breaker.phase == "closed"
    assert driver.breaker.consecutive_failures == 0
    driver.record_failure("x", before)
    assert driver.breaker.phase == "closed"


def test_failures__none_for_five_minutes__the_count_expires(clock: ManualClock) -> None:
    driver = Driver(CircuitBreaker("n", state=MemoryStore(clock)), None)
    driver.fails(4)
    clock.advance(301)
    driver.fails(4)
    assert driver.breaker.phase == "closed"


def test_properties__cooldown_ended_by_time__show_the_new_phase(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=3, cooldown_seconds=10)
    driver.fails(2)
    assert driver.breaker.consecutive_failures == 2
    clock.advance(301)
    assert driver.breaker.consecutive_failures == driver.get_state().failures
    driver.reset()
    driver.fails(3)
    clock.advance(10)
    assert driver.breaker.phase == "half_open"
    clock.advance(301)
    assert driver.breaker.phase == driver.get_state().phase


def test_closed_again__idle_for_longer_than_its_ttl__still_counts_failures(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=2, cooldown_seconds=10)
    driver.fails(2)
    clock.advance(10)
    assert driver.refused() is None
    clock.advance(400)
    driver.fails(2)
    assert driver.breaker.phase == "open"


def test_force__open__refuses_until_revoked(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=1, cooldown_seconds=10)
    driver.force("open", "maintenance\n until noon")
    clock.advance(100_000)
    error = driver.refused()
    assert error is not None
    assert error.reason == "maintenance  until noon"
    assert driver.degraded()
    state = driver.get_state()
    assert (state.forced, state.degraded_until) == ("open", None)
    assert driver.breaker.degraded_until is None
    driver.force(None)
    assert driver.refused() is None


def test_force__closed__admits_all_calls_and_still_counts(make: MakeDriver) -> None:
    driver = make(threshold=2)
    driver.force("closed")
    driver.fails(5)
    assert driver.breaker.phase == "closed"
    assert driver.get_state().forced == "closed"
    assert driver.breaker.consecutive_failures == 5
    driver.force(None)
    driver.fails()
    assert driver.breaker.phase == "open"


def test_force__unknown_value__raises_naming_it(make: MakeDriver) -> None:
    with pytest.raises(ValueError, match="how must be 'open', 'closed' or None, got 'shut'"):
        make().force("shut")


def test_ratio__enough_calls_and_ratio_reached__opens(make: MakeDriver) -> None:
    driver = make(threshold=None, failure_ratio=0.5, minimum_calls=10)
    for _ in range(4):
        assert driver.refused() is None
        driver.fails()
    assert driver.breaker.phase == "closed"
    assert driver.refused() is None
    driver.fails()
    assert driver.breaker.phase == "open"


def test_ratio__failures_left_the_window__stays_closed(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=None, failure_ratio=0.5, minimum_calls=4, window_seconds=10)
    driver.fails(3)
    clock.advance(11)
    assert driver.refused() is None
    driver.fails()
    assert driver.refused() is None
    assert driver.refused() is None
    driver.fails()
    assert driver.breaker.phase == "closed"


def test_ratio__long_success_then_failures__only_the_window_counts(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=None, failure_ratio=0.5, minimum_calls=10, window_seconds=60)
    for _ in range(100):
        assert driver.refused() is None
        clock.advance(10)
    with pytest.raises(CircuitOpenError):
        driver.fails(10)


def test_ratio__idle_for_longer_than_the_window__drops_earlier_successes(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=None, failure_ratio=0.5, minimum_calls=10, window_seconds=60)
    for _ in range(100):
        assert driver.refused() is None
    clock.advance(61)
    driver.fails(10)
    assert driver.breaker.phase == "open"


def test_ratio__successes_without_admission__count(make: MakeDriver) -> None:
    driver = make(threshold=None, failure_ratio=0.5, minimum_calls=4)
    for _ in range(3):
        driver.record_success()
    driver.fails(2)
    assert driver.get_state().phase == "closed"
    driver.fails()
    assert driver.get_state().phase == "open"


def test_with_block__success_in_a_closed_circuit__changes_nothing(make: MakeDriver) -> None:
    driver = make(threshold=1)
    for _ in range(3):
        assert driver.within(lambda: "well") == "well"
    assert driver.get_state().failures == 0


def test_slow__ratio_of_slow_calls_reached__opens_though_all_succeed(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=None, slow_seconds=1, slow_ratio=0.5, minimum_calls=4)
    for _ in range(2):
        assert driver.refused() is None
        driver.guarded(lambda: clock.advance(1.5))
    assert driver.breaker.phase == "open"
    assert driver.get_state().reason == "slower than 1 s"


def test_slow__failed_slow_call__counts_as_slow_too(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=None, slow_seconds=1, slow_ratio=1.0, minimum_calls=2)

    def slowly() -> None:
        clock.advance(2)
        raise OSError("no route")

    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            driver.guarded(slowly)
    assert driver.breaker.phase == "open"


def test_ramp__probe_succeeded__admits_a_growing_share(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=1, cooldown_seconds=10, ramp_steps=3, ramp_seconds=5)
    driver.fails()
    clock.advance(10)
    assert driver.refused() is None
    for share in (0.25, 0.5, 0.75):
        assert driver.breaker.phase == "ramp"
        assert driver.get_state().share == share
        admitted = sum(bool(driver.allow()) for _ in range(300))
        assert 300 * share * 0.6 < admitted < 300 * share * 1.5
        clock.advance(5)
    assert driver.breaker.phase == "closed"
    assert driver.get_state().share == 1


def test_ramp__failure__opens_again(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=5, cooldown_seconds=10, ramp_steps=3)
    driver.fails(5)
    clock.advance(10)
    driver.record_success(driver.allow())
    assert driver.breaker.phase == "ramp"
    admission = next(admission for _ in range(1000) if (admission := driver.allow()))
    refusal = next(admission for _ in range(1000) if not (admission := driver.allow()))
    assert refusal.retry_after == pytest.approx(5)
    driver.record_failure("again", admission)
    assert driver.breaker.phase == "open"


def test_counts_error__false__counts_as_a_success(store: Store, runner: Any) -> None:
    breaker = CircuitBreaker("n", 2, state=store, counts_error=lambda error: isinstance(error, OSError))
    driver = Driver(breaker, runner)
    driver.fails()
    with pytest.raises(ZeroDivisionError):
        driver.guarded(lambda: 1 / 0)
    assert breaker.consecutive_failures == 0
    if runner is not None and hasattr(store, "aclose"):
        runner.run(store.aclose())


def test_counts_result__true__counts_as_a_failure_and_returns_the_result(store: Store, runner: Any) -> None:
    breaker = CircuitBreaker(
        "n", 2, state=store, counts_result=lambda status: status == 503, counts_error=lambda error: False
    )
    driver = Driver(breaker, runner)
    assert driver.guarded(lambda: 503) == 503
    assert breaker.consecutive_failures == 1
    assert driver.guarded(lambda: 200) == 200
    assert breaker.consecutive_failures == 0
    for _ in range(2):
        driver.guarded(lambda: 503)
    assert driver.get_state().reason == "BadResultError: 503"
    if runner is not None and hasattr(store, "aclose"):
        runner.run(store.aclose())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_cancelled__by_any_exception__counts_as_neither_and_releases_the_probe(
    make: MakeDriver, clock: ManualClock, error: type[BaseException]
) -> None:
    driver = make(threshold=2, cooldown_seconds=10)
    driver.fails()

    def cancelled() -> None:
        raise error

    caught = (error, asyncio.CancelledError)
    if driver.runner is None or error is GeneratorExit:
        with pytest.raises(caught):
            driver.guarded(cancelled)
        assert driver.breaker.consecutive_failures == 1
        driver.fails()
        clock.advance(10)
        with pytest.raises(caught):
            driver.within(cancelled)
        assert driver.breaker.phase == "half_open"
        wait_until(lambda: driver.allow().probe)  # another thread releases what an abandoned call held


class _HttpError(Exception):
    def __init__(self, status_code: int) -> None:
        super().__init__(status_code)
        self.response = SimpleNamespace(status_code=status_code)


class _StrangeError(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("not yet")


@pytest.mark.parametrize(
    ("error", "phase"),
    [
        (_HttpError(429), "half_open"),
        (LimitReachedError("no room", "inner", 1.0), "half_open"),
        (CircuitOpenError("inner", "", None, 1.0), "half_open"),
        (_HttpError(503), "open"),
        (_StrangeError(), "open"),
    ],
)
def test_refused__locally_or_with_429__counts_as_neither_and_releases_the_probe(
    make: MakeDriver, clock: ManualClock, error: Exception, phase: str
) -> None:
    driver = make(threshold=1, cooldown_seconds=10)
    driver.fails()
    clock.advance(10)
    for way in (driver.guarded, driver.within):
        with pytest.raises((type(error), CircuitOpenError)):
            way(_raiser(error))
    assert driver.get_state().phase == phase
    assert driver.get_state().probes == ()


def _raiser(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_predicate__raises__its_error_reaches_the_caller_and_the_probe_is_released(
    make: MakeDriver, clock: ManualClock
) -> None:
    def broken(thing: Any) -> bool:
        return bool(thing.status > 499)

    driver = make(threshold=1, cooldown_seconds=10, counts_error=broken, counts_result=broken)
    driver.record_failure()
    clock.advance(10)
    with pytest.raises(AttributeError, match="status"):
        driver.guarded(lambda: 1)
    with pytest.raises(AttributeError, match="status"):
        driver.guarded(lambda: 1 / 0)
    assert driver.get_state().probes == ()
    assert driver.within(lambda: 1) == 1  # a block has no result to classify
    assert driver.get_state().phase == "closed"


class _NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("never shown")


def test_counts_result__result_without_a_repr__is_counted_and_returned(make: MakeDriver) -> None:
    driver = make(threshold=1, counts_result=lambda _: True)
    assert isinstance(driver.guarded(_NoRepr), _NoRepr)
    assert driver.get_state().phase == "open"


def test_cancelled__task_with_a_probe__releases_the_probe(store: Store, clock: ManualClock) -> None:
    breaker = CircuitBreaker("n", 1, 10, state=store)

    async def main() -> None:
        await breaker.record_failure()
        clock.advance(10)
        inside = asyncio.Event()

        async def probe() -> None:
            async with breaker.admit():
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(probe())
        await inside.wait()
        assert not await breaker.allow()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await breaker.allow()).probe
        if hasattr(store, "aclose"):
            await store.aclose()

    asyncio.run(main())


def test_decorator__function__keeps_its_name_and_kind() -> None:
    breaker = CircuitBreaker("n", state="memory://")

    @breaker
    def plain(a: int, *, b: int = 2) -> int:
        """Add."""
        return a + b

    @breaker
    async def awaited() -> int:
        return 1

    assert plain(1, b=3) == 4
    assert (plain.__name__, plain.__doc__) == ("plain", "Add.")
    assert asyncio.iscoroutinefunction(awaited)
    assert not asyncio.iscoroutinefunction(plain)


class _Later:
    async def __call__(self) -> None:
        raise OSError("down")


def test_decorator__object_with_an_async_call__is_guarded_until_it_ends() -> None:
    breaker = CircuitBreaker("later", 1, state="memory://")
    with pytest.raises(OSError, match="down"):
        asyncio.run(breaker(_Later())())
    assert breaker.is_degraded is True


def test_events__each_transition__is_published_once_by_each_worker(
    make: MakeDriver, clock: ManualClock
) -> None:
    driver = make(threshold=1, cooldown_seconds=10)
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    published: list[tuple[str, str]] = []

    def record(event: events.Event) -> None:
        if event.source == "pncp":
            published.append((event.kind, event.text))

    stop = events.listen(record)
    try:
        driver.fails()
        assert driver.refused()
        clock.advance(10)
        assert driver.breaker.phase == "half_open"
        assert driver.refused() is None
        driver.force("open", "by me")
        driver.force(None)
    finally:
        stop()
        use_metrics(before)
    assert published == [
        ("breaker_opened", "open for 10.0 s: OSError: no route"),
        ("breaker_half_open", "half-open, waiting for a probe: OSError: no route"),
        ("breaker_closed", "closed"),
        ("breaker_forced", "forced open by an operator: by me"),
        ("breaker_forced", "no longer forced"),
    ]
    assert metrics.value("breaker_transitions", breaker="pncp", to="open") == 1
    assert metrics.value("breaker_transitions", breaker="pncp", to="closed") == 1
    assert metrics.value("breaker_calls", breaker="pncp", outcome="failure") == 1
    assert metrics.value("breaker_calls", breaker="pncp", outcome="refused") == 1
    assert metrics.value("breaker_calls", breaker="pncp", outcome="success") == 1


def test_state__as_dict__has_plain_values(make: MakeDriver, clock: ManualClock) -> None:
    driver = make(threshold=1, cooldown_seconds=10)
    driver.fails()
    clock.advance(10)
    driver.allow()
    state = driver.get_state().as_dict()
    assert state["failures"] == 1
    assert state["degraded"] is False
    assert state["degraded_until"] is None
    assert state["probes"][0]["seconds_left"] == 30
    assert state["fallback"] is None


def test_name__in_use_with_another_configuration__raises(store: Store) -> None:
    breaker = CircuitBreaker("n", 5, state=store)
    with pytest.raises(ValueError, match="name 'n' is in use on this store for a breaker with threshold=5"):
        CircuitBreaker("n", 6, state=store)
    assert CircuitBreaker("n", 5, state=store)._view is breaker._view
    assert "CircuitBreaker 'n', threshold=5" in repr(breaker)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 101])
def test_name__illegal__raises_showing_it(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 100 of"):
        CircuitBreaker(name, state="memory://")


def test_failure__error_whose_str_raises__is_counted(make: MakeDriver) -> None:
    class NoStrError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    driver = make(threshold=1)
    driver.record_failure(NoStrError())
    assert driver.get_state().reason == "NoStrError"
    assert "refused" in repr(driver.allow())
