"""What a breaker promises, on every store, blocking and awaiting, on a clock moved by hand (A1, A3 to A5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from tests.breaker.faces import Face
from tests.support import comes_true

from comporta import CircuitBreaker, CircuitOpenError, events
from comporta.errors import LimitReachedError
from comporta.metrics import InMemoryMetrics, use_metrics
from comporta.stores.base import Store
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock

MakeFace = Callable[..., Face]


def test_breaker__new__is_closed_and_lets_calls_through(make: MakeFace) -> None:
    face = make()
    assert face.refused() is None
    assert face.allow().allowed
    assert face.breaker.phase == "closed"
    assert not face.degraded()
    assert face.breaker.degraded_until is None
    assert face.breaker.fallback is None


def test_breaker__as_many_failures_in_a_row_as_the_threshold__opens(make: MakeFace) -> None:
    face = make(threshold=3, cooldown_seconds=30)
    face.fails(2)
    assert not face.degraded()
    assert face.breaker.consecutive_failures == 2
    face.fails()
    assert face.degraded()
    assert face.breaker.phase == "open"


def test_open__a_call__is_refused_saying_why_since_when_and_until_when(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=1, cooldown_seconds=30)
    face.fails()
    clock.advance(10)
    error = face.refused()
    assert error is not None
    assert error.name == "pncp"
    assert error.why == "OSError: no route"
    assert error.retry_after == pytest.approx(20)
    assert error.since is not None
    state = face.get_state()
    assert state.since == pytest.approx(error.since, abs=5)
    assert state.degraded_until == pytest.approx(state.since + 30, abs=5)
    assert face.breaker.degraded_until == pytest.approx(state.degraded_until, abs=5)


def test_open__a_with_block__is_refused(make: MakeFace) -> None:
    face = make(threshold=1)
    face.fails()
    with pytest.raises(CircuitOpenError):
        face.within(lambda: None)


def test_with_block__fails__counts_and_a_success_starts_again(make: MakeFace) -> None:
    face = make(threshold=2)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            face.within(lambda: 1 / 0)
        assert face.breaker.consecutive_failures == 1
        assert face.within(lambda: "well") == "well"
        assert face.breaker.consecutive_failures == 0


def test_seed__failures_recorded_bare__open_it_and_a_success_closes_it(make: MakeFace) -> None:
    face = make(threshold=50, cooldown_seconds=120)
    for _ in range(50):
        face.record_failure()
    assert face.degraded()
    assert face.try_recover() is False
    face.record_success()
    assert not face.degraded()
    assert face.breaker.consecutive_failures == 0
    assert face.breaker.phase == "closed"


def test_seed__cooldown_over__is_not_degraded_though_nobody_called_try_recover(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=1, cooldown_seconds=2)
    face.record_failure("down")
    clock.advance(1.999)
    assert face.degraded()
    clock.advance(0.001)
    assert not face.degraded()
    assert face.breaker.phase == "half_open"
    assert face.try_recover() is True
    assert face.breaker.phase == "half_open"


def test_record_failure__ten_at_once__count_ten(store: Store) -> None:
    breaker = CircuitBreaker("pncp", 10, state=store)

    async def fail_all() -> None:
        await asyncio.gather(*(breaker.record_failure() for _ in range(10)))
        assert breaker.consecutive_failures == 10
        assert await breaker.is_degraded_async()
        if hasattr(store, "aclose"):
            await store.aclose()

    asyncio.run(fail_all())


def test_record_failure__from_ten_threads__count_all(store: Store) -> None:
    breaker = CircuitBreaker("pncp", 1000, state=store)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda _: breaker.sync.record_failure(), range(100)))
    assert breaker.sync.get_state().failures == 100


def test_half_open__probe_succeeds__is_closed(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=2, cooldown_seconds=10)
    face.fails(2)
    clock.advance(10)
    assert face.refused() is None
    assert face.breaker.phase == "closed"
    assert face.breaker.consecutive_failures == 0


def test_half_open__probe_fails__is_open_for_a_whole_cooldown(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=2, cooldown_seconds=10)
    face.fails(2)
    clock.advance(10)
    face.fails()
    assert face.degraded()
    error = face.refused()
    assert error is not None
    assert error.retry_after == pytest.approx(10)


def test_half_open__as_many_as_there_are_probes__are_admitted(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=1, cooldown_seconds=10, probes=2, probe_seconds=5)
    face.fails()
    clock.advance(10)
    answers = [face.allow() for _ in range(10)]
    assert [bool(answer) for answer in answers] == [True, True, *[False] * 8]
    assert answers[2].phase == "half_open"
    assert answers[2].retry_after == pytest.approx(5)
    state = face.get_state()
    assert [probe.seconds_left for probe in state.probes] == [5, 5]
    face.record_success(answers[0])
    assert face.breaker.phase == "half_open"
    assert not face.allow()
    face.record_success(answers[1])
    assert face.breaker.phase == "closed"


def test_half_open__prober_never_comes_back__its_place_is_free_at_its_deadline_however_many_were_refused(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=1, cooldown_seconds=10, probe_seconds=5)
    face.fails()
    clock.advance(10)
    lost = face.allow()
    for _ in range(49):
        clock.advance(0.1)
        assert not face.allow()
    clock.advance(0.1)
    second = face.allow()
    assert second.probe
    face.record_failure("late", lost)
    face.record_success(lost)
    assert face.breaker.phase == "half_open"
    face.record_success(second)
    assert face.breaker.phase == "closed"


def test_half_open__probe_out_for_longer_than_others_are_remembered__nobody_else_is_let_through(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=1, cooldown_seconds=10, probe_seconds=600)
    face.fails()
    clock.advance(10)
    probe = face.allow()
    clock.advance(599)
    assert face.get_state().phase == "half_open"
    assert not face.allow()
    face.record_success(probe)
    assert face.get_state().phase == "closed"


def test_half_open__probe_given_back__is_there_for_the_next(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=1, cooldown_seconds=10)
    face.fails()
    clock.advance(10)
    first = face.allow()
    assert first
    assert not face.allow()
    face.give_back(first)
    assert face.allow()


def test_half_open__bare_results__decide_it(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=1, cooldown_seconds=10)
    for _ in range(2):
        face.record_failure()
        assert face.breaker.phase == "open"
        clock.advance(10)
        assert face.breaker.phase == "half_open"
    face.record_success()
    assert face.breaker.phase == "closed"


def test_generation__results_from_before_a_transition__change_nothing(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=2, cooldown_seconds=10)
    early = [face.allow() for _ in range(6)]
    face.fails(2)
    assert face.breaker.phase == "open"
    face.record_success(early[0])
    face.record_failure("x", early[1])
    assert face.breaker.phase == "open"
    assert face.breaker.consecutive_failures == 2
    clock.advance(10)
    probe = face.allow()
    face.record_success(early[2])  # a stale success does not close it
    face.record_failure("x", early[3])
    assert face.breaker.phase == "half_open"
    face.record_success(probe)
    face.record_failure("x", early[4])
    face.record_failure("x", early[5])
    assert face.breaker.phase == "closed"
    assert face.breaker.consecutive_failures == 0


def test_open__more_failures__are_counted_and_extend_nothing(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=2, cooldown_seconds=10)
    face.fails(2)
    clock.advance(6)
    face.record_failure()
    assert face.breaker.consecutive_failures == 3
    clock.advance(4)
    assert face.breaker.phase == "half_open"


def test_reset__open__is_as_if_never_used(make: MakeFace) -> None:
    face = make(threshold=1)
    before = face.allow()
    face.fails()
    face.reset()
    assert face.breaker.phase == "closed"
    assert face.breaker.consecutive_failures == 0
    face.record_failure("x", before)
    assert face.breaker.phase == "closed"


def test_failures__nobody_fails_for_five_minutes__are_forgotten(clock: ManualClock) -> None:
    face = Face(CircuitBreaker("n", state=MemoryStore(clock)), None)
    face.fails(4)
    clock.advance(301)
    face.fails(4)
    assert face.breaker.phase == "closed"


def test_properties__after_time_alone_changed_the_circuit__say_so(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=3, cooldown_seconds=10)
    face.fails(2)
    assert face.breaker.consecutive_failures == 2
    clock.advance(301)
    assert face.breaker.consecutive_failures == face.get_state().failures
    face.reset()
    face.fails(3)
    clock.advance(10)
    assert face.breaker.phase == "half_open"
    clock.advance(301)
    assert face.breaker.phase == face.get_state().phase


def test_recovered__idle_for_longer_than_it_is_remembered__still_counts_failures(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=2, cooldown_seconds=10)
    face.fails(2)
    clock.advance(10)
    assert face.refused() is None
    clock.advance(400)
    face.fails(2)
    assert face.breaker.phase == "open"


def test_force__open__refuses_until_revoked(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=1, cooldown_seconds=10)
    face.force("open", "maintenance\n until noon")
    clock.advance(100_000)
    error = face.refused()
    assert error is not None
    assert error.why == "maintenance  until noon"
    assert face.degraded()
    state = face.get_state()
    assert (state.forced, state.degraded_until) == ("open", None)
    assert face.breaker.degraded_until is None
    face.force(None)
    assert face.refused() is None


def test_force__closed__admits_all_and_counts_on(make: MakeFace) -> None:
    face = make(threshold=2)
    face.force("closed")
    face.fails(5)
    assert face.breaker.phase == "closed"
    assert face.get_state().forced == "closed"
    assert face.breaker.consecutive_failures == 5
    face.force(None)
    face.fails()
    assert face.breaker.phase == "open"


def test_force__anything_else__is_refused_naming_it(make: MakeFace) -> None:
    with pytest.raises(ValueError, match="how must be 'open', 'closed' or None, got 'shut'"):
        make().force("shut")


def test_ratio__enough_calls_and_too_many_failures__opens(make: MakeFace) -> None:
    face = make(threshold=None, failure_ratio=0.5, minimum_calls=10)
    for _ in range(4):
        assert face.refused() is None
        face.fails()
    assert face.breaker.phase == "closed"
    assert face.refused() is None
    face.fails()
    assert face.breaker.phase == "open"


def test_ratio__failures_left_the_window__stays_closed(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=None, failure_ratio=0.5, minimum_calls=4, window_seconds=10)
    face.fails(3)
    clock.advance(11)
    assert face.refused() is None
    face.fails()
    assert face.refused() is None
    assert face.refused() is None
    face.fails()
    assert face.breaker.phase == "closed"


def test_ratio__long_well_and_then_failing__goes_by_the_window_alone(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=None, failure_ratio=0.5, minimum_calls=10, window_seconds=60)
    for _ in range(100):
        assert face.refused() is None
        clock.advance(10)
    with pytest.raises(CircuitOpenError):
        face.fails(10)


def test_ratio__idle_for_longer_than_the_window__earlier_successes_count_no_more(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=None, failure_ratio=0.5, minimum_calls=10, window_seconds=60)
    for _ in range(100):
        assert face.refused() is None
    clock.advance(61)
    face.fails(10)
    assert face.breaker.phase == "open"


def test_ratio__successes_recorded_bare__count(make: MakeFace) -> None:
    face = make(threshold=None, failure_ratio=0.5, minimum_calls=4)
    for _ in range(3):
        face.record_success()
    face.fails(2)
    assert face.get_state().phase == "closed"
    face.fails()
    assert face.get_state().phase == "open"


def test_with_block__well_in_a_closed_circuit__changes_nothing(make: MakeFace) -> None:
    face = make(threshold=1)
    for _ in range(3):
        assert face.within(lambda: "well") == "well"
    assert face.get_state().failures == 0


def test_slow__too_many_slow_calls__opens_though_all_succeed(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=None, slow_seconds=1, slow_ratio=0.5, minimum_calls=4)
    for _ in range(2):
        assert face.refused() is None
        face.guarded(lambda: clock.advance(1.5))
    assert face.breaker.phase == "open"
    assert face.get_state().why == "slower than 1 s"


def test_slow__failing_calls__are_slow_too(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=None, slow_seconds=1, slow_ratio=1.0, minimum_calls=2)

    def slowly() -> None:
        clock.advance(2)
        raise OSError("no route")

    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            face.guarded(slowly)
    assert face.breaker.phase == "open"


def test_ramp__probe_succeeded__lets_calls_through_in_growing_parts(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=1, cooldown_seconds=10, ramp_steps=3, ramp_seconds=5)
    face.fails()
    clock.advance(10)
    assert face.refused() is None
    for share in (0.25, 0.5, 0.75):
        assert face.breaker.phase == "ramp"
        assert face.get_state().share == share
        admitted = sum(bool(face.allow()) for _ in range(300))
        assert 300 * share * 0.6 < admitted < 300 * share * 1.5
        clock.advance(5)
    assert face.breaker.phase == "closed"
    assert face.get_state().share == 1


def test_ramp__fails__opens_again(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=5, cooldown_seconds=10, ramp_steps=3)
    face.fails(5)
    clock.advance(10)
    face.record_success(face.allow())
    assert face.breaker.phase == "ramp"
    admission = next(admission for _ in range(1000) if (admission := face.allow()))
    refusal = next(admission for _ in range(1000) if not (admission := face.allow()))
    assert refusal.retry_after == pytest.approx(5)
    face.record_failure("again", admission)
    assert face.breaker.phase == "open"


def test_counts_error__says_no__is_a_success(store: Store, runner: Any) -> None:
    breaker = CircuitBreaker("n", 2, state=store, counts_error=lambda error: isinstance(error, OSError))
    face = Face(breaker, runner)
    face.fails()
    with pytest.raises(ZeroDivisionError):
        face.guarded(lambda: 1 / 0)
    assert breaker.consecutive_failures == 0
    if runner is not None and hasattr(store, "aclose"):
        runner.run(store.aclose())


def test_counts_result__says_yes__is_a_failure_and_still_returned(store: Store, runner: Any) -> None:
    breaker = CircuitBreaker(
        "n", 2, state=store, counts_result=lambda status: status == 503, counts_error=lambda error: False
    )
    face = Face(breaker, runner)
    assert face.guarded(lambda: 503) == 503
    assert breaker.consecutive_failures == 1
    assert face.guarded(lambda: 200) == 200
    assert breaker.consecutive_failures == 0
    for _ in range(2):
        face.guarded(lambda: 503)
    assert face.get_state().why == "BadResultError: 503"
    if runner is not None and hasattr(store, "aclose"):
        runner.run(store.aclose())


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError])
def test_cancelled__any_way__is_neither_and_gives_the_probe_back(
    make: MakeFace, clock: ManualClock, error: type[BaseException]
) -> None:
    face = make(threshold=2, cooldown_seconds=10)
    face.fails()

    def cancelled() -> None:
        raise error

    caught = (error, asyncio.CancelledError)
    if face.runner is None or error is GeneratorExit:
        with pytest.raises(caught):
            face.guarded(cancelled)
        assert face.breaker.consecutive_failures == 1
        face.fails()
        clock.advance(10)
        with pytest.raises(caught):
            face.within(cancelled)
        assert face.breaker.phase == "half_open"
        comes_true(lambda: face.allow().probe)  # what is thrown away is cleared up after on another thread


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
def test_refused__on_its_way_or_with_429__is_no_failure_and_gives_the_probe_back(
    make: MakeFace, clock: ManualClock, error: Exception, phase: str
) -> None:
    face = make(threshold=1, cooldown_seconds=10)
    face.fails()
    clock.advance(10)
    for way in (face.guarded, face.within):
        with pytest.raises((type(error), CircuitOpenError)):
            way(_raiser(error))
    assert face.get_state().phase == phase
    assert face.get_state().probes == ()


def _raiser(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def test_predicate__raises__is_heard_and_the_probe_is_given_back(make: MakeFace, clock: ManualClock) -> None:
    def broken(thing: Any) -> bool:
        return bool(thing.status > 499)

    face = make(threshold=1, cooldown_seconds=10, counts_error=broken, counts_result=broken)
    face.record_failure()
    clock.advance(10)
    with pytest.raises(AttributeError, match="status"):
        face.guarded(lambda: 1)
    with pytest.raises(AttributeError, match="status"):
        face.guarded(lambda: 1 / 0)
    assert face.get_state().probes == ()
    assert face.within(lambda: 1) == 1  # what a block computes is nobody's to judge
    assert face.get_state().phase == "closed"


class _Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("never shown")


def test_counts_result__result_that_cannot_be_shown__is_counted_and_returned(make: MakeFace) -> None:
    face = make(threshold=1, counts_result=lambda _: True)
    assert isinstance(face.guarded(_Unshowable), _Unshowable)
    assert face.get_state().phase == "open"


def test_cancelled__a_task_that_probes__gives_the_probe_back(store: Store, clock: ManualClock) -> None:
    breaker = CircuitBreaker("n", 1, 10, state=store)

    async def main() -> None:
        await breaker.record_failure()
        clock.advance(10)
        inside = asyncio.Event()

        async def probe() -> None:
            async with breaker:
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


def test_with_blocks__nested_and_across_tasks__keep_their_own_admissions() -> None:
    inner, outer = (CircuitBreaker(name, 1, state="memory://") for name in ("inner", "outer"))
    entered = inner.sync.__enter__()
    outer.sync.__enter__()
    inner.sync.__exit__(None, None, None)  # not in the order in which they were entered
    outer.sync.__exit__(OSError, OSError("x"), None)
    assert entered.allowed
    assert inner.phase == "closed"
    assert outer.phase == "open"
    outer.sync.__exit__(None, None, None)  # one that was never entered proves nothing

    async def never_entered() -> None:
        await outer.__aexit__(None, None, None)

    asyncio.run(never_entered())
    assert outer.phase == "open"


def test_with_block__left_in_another_context_than_entered__counts_and_is_no_probe(
    store: Store, clock: ManualClock
) -> None:
    breaker = CircuitBreaker("contexts", 2, 10, state=store)

    def call(error: Exception | None) -> None:
        copy_context().run(breaker.sync.__enter__)
        copy_context().run(breaker.sync.__exit__, None if error is None else type(error), error, None)

    for _ in range(2):
        call(OSError("down"))
    assert breaker.sync.get_state().phase == "open"
    clock.advance(10)
    call(None)
    assert breaker.sync.get_state().phase == "half_open"
    assert len(breaker.sync.get_state().probes) == 1


def test_decorator__function__keeps_name_and_nature() -> None:
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


def test_decorator__object_whose_call_is_async__is_guarded_to_its_end() -> None:
    breaker = CircuitBreaker("later", 1, state="memory://")
    with pytest.raises(OSError, match="down"):
        asyncio.run(breaker(_Later())())
    assert breaker.is_degraded is True


async def _yields_later() -> AsyncIterator[int]:
    yield 1


def _yields() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [_yields, _yields_later])
def test_decorator__what_yields__is_refused_naming_it(function: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=f"what yields cannot be decorated.*{function.__name__}"):
        CircuitBreaker("yields", state="memory://")(function)


def test_events__each_transition__is_said_once_by_each_who_learns_it(
    make: MakeFace, clock: ManualClock
) -> None:
    face = make(threshold=1, cooldown_seconds=10)
    metrics = InMemoryMetrics()
    before = use_metrics(metrics)
    said: list[tuple[str, str]] = []

    def hear(event: events.Event) -> None:
        if event.source == "pncp":
            said.append((event.kind, event.text))

    stop = events.listen(hear)
    try:
        face.fails()
        assert face.refused()
        clock.advance(10)
        assert face.breaker.phase == "half_open"
        assert face.refused() is None
        face.force("open", "by me")
        face.force(None)
    finally:
        stop()
        use_metrics(before)
    assert said == [
        ("breaker_opened", "open for 10.0 s: OSError: no route"),
        ("breaker_half_open", "half-open, to be tried again: OSError: no route"),
        ("breaker_closed", "closed"),
        ("breaker_forced", "forced open by hand until revoked: by me"),
        ("breaker_forced", "no longer forced"),
    ]
    assert metrics.value("breaker_transitions", breaker="pncp", to="open") == 1
    assert metrics.value("breaker_transitions", breaker="pncp", to="closed") == 1
    assert metrics.value("breaker_calls", breaker="pncp", outcome="failure") == 1
    assert metrics.value("breaker_calls", breaker="pncp", outcome="refused") == 1
    assert metrics.value("breaker_calls", breaker="pncp", outcome="success") == 1


def test_state__as_dict__is_plain(make: MakeFace, clock: ManualClock) -> None:
    face = make(threshold=1, cooldown_seconds=10)
    face.fails()
    clock.advance(10)
    face.allow()
    state = face.get_state().as_dict()
    assert state["failures"] == 1
    assert state["degraded"] is False
    assert state["degraded_until"] is None
    assert state["probes"][0]["seconds_left"] == 30
    assert state["fallback"] is None


def test_names__another_configuration_under_one_name__is_refused(store: Store) -> None:
    breaker = CircuitBreaker("n", 5, state=store)
    with pytest.raises(ValueError, match="name 'n' is in use on this state for a breaker with threshold=5"):
        CircuitBreaker("n", 6, state=store)
    assert CircuitBreaker("n", 5, state=store).view is breaker.view
    assert "CircuitBreaker 'n', threshold=5" in repr(breaker)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 101])
def test_names__illegal__are_refused_showing_it(name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 100 of"):
        CircuitBreaker(name, state="memory://")


def test_failure__error_that_cannot_be_shown__is_counted_all_the_same(make: MakeFace) -> None:
    class UnshowableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    face = make(threshold=1)
    face.record_failure(UnshowableError())
    assert face.get_state().why == "UnshowableError"
    assert "refused" in repr(face.allow())
