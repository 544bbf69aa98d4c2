"""Calls through all policies, blocking and async, on a manual clock."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.manual_heartbeat import manual_failover, run_heartbeat
from tests.support import shared_store
from tests.upstream.conftest import Make
from tests.upstream.drivers import Driver, Response, Scripted, lowest

from comporta import (
    BreakerConfig,
    Budget,
    CircuitOpenError,
    LimitConfig,
    LimitReachedError,
    Outcome,
    Retry,
    Upstream,
)
from comporta.errors import StateUnavailableError
from comporta.limits.overrides.degradation import Degradation
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.threads import AutoResetEvent


def down() -> OSError:
    return OSError("no route")


def test_call__succeeds__is_made_once_with_its_arguments(make: Make) -> None:
    driver = make()
    assert driver.call(lambda *args, **kwargs: (args, kwargs), 1, two=2) == ((1,), {"two": 2})
    assert driver.guarded(lambda *args, **kwargs: (args, kwargs), 1, two=2) == ((1,), {"two": 2})
    assert driver.report is not None
    assert (driver.report.source, driver.report.outcome, driver.report.attempts) == ("pncp", "ok", 1)


def test_call__fails_twice__is_retried_after_two_and_four_seconds(make: Make, clock: ManualClock) -> None:
    driver, upstream = make(), Scripted(clock, down(), down())
    assert driver.call(upstream) == "well"
    assert upstream.at == [0, 2, 6]
    assert driver.report is not None
    assert (driver.report.attempts, driver.report.waited, driver.report.took) == (3, 6, 6)


def test_call__always_fails__raises_the_error_of_its_last_attempt(make: Make, clock: ManualClock) -> None:
    errors = [down() for _ in range(4)]
    driver, upstream = make(), Scripted(clock, *errors)
    with pytest.raises(OSError, match="no route") as raised:
        driver.call(upstream)
    assert raised.value is errors[-1]
    assert (errors[-1].__cause__, errors[-1].__context__) == (None, None)
    assert upstream.at == [0, 2, 6, 14]


def test_call__programming_error__is_not_retried(make: Make, clock: ManualClock) -> None:
    driver, upstream = make(), Scripted(clock, KeyError("page"))
    with pytest.raises(KeyError):
        driver.call(upstream)
    assert upstream.at == [0]


def test_call__error_not_selected_by_on__raises_at_once(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver, upstream = make(retry=Retry(on=TimeoutError, state=store)), Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    assert upstream.at == [0]


@pytest.mark.parametrize("off", [False, None])
def test_call__without_retry_breaker_and_degradation__fails_once(
    make: Make, clock: ManualClock, off: bool | None
) -> None:
    driver = make(retry=off, breaker=off, degradation=off)
    upstream = Scripted(clock, *(down() for _ in range(50)), Response(429))
    for _ in range(50):
        with pytest.raises(OSError, match="no route"):
            driver.call(upstream)
    assert driver.call(upstream).status_code == 429
    assert driver.call(upstream) == "well"
    state = driver.state()
    assert (state.breaker, state.retries_last_minute, state.calls_in_flight) == (None, None, None)


def test_limit__used_up__calls_wait_instead_of_failing(make: Make, clock: ManualClock) -> None:
    driver, upstream = make("1/s"), Scripted(clock)
    for _ in range(4):
        driver.call(upstream)
    assert upstream.at == [0, 1, 2, 3]
    assert driver.report is not None
    assert driver.report.waited == pytest.approx(1)


def test_limit__no_capacity_within_max_wait__raises_with_retry_after(make: Make, clock: ManualClock) -> None:
    driver, upstream = make("1/minute", max_wait=5), Scripted(clock)
    driver.call(upstream)
    with pytest.raises(
        LimitReachedError, match=r"pncp: the limit of .* had no capacity within 5 s"
    ) as raised:
        driver.call(upstream)
    assert raised.value.retry_after == pytest.approx(60)
    assert raised.value.name == "pncp"
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.attempts) == ("limited", 0)
    assert upstream.at == [0]


def test_breaker__threshold_reached__refuses_and_takes_no_token(make: Make, clock: ManualClock) -> None:
    driver = make(breaker=BreakerConfig(threshold=2, cooldown_seconds=30), retry=False)
    upstream = Scripted(clock, down(), down())
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            driver.call(upstream)
    left = driver.state().limiter.tokens_available
    with pytest.raises(CircuitOpenError, match="OSError: no route") as raised:
        driver.call(upstream)
    assert raised.value.retry_after == pytest.approx(30)
    assert driver.state().limiter.tokens_available == left
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.circuit, driver.report.attempts) == ("open", "open", 0)
    assert driver.report.reason == "OSError: no route"


def test_breaker__opened_by_the_first_attempts__raises_their_error_without_a_retry(
    make: Make, clock: ManualClock
) -> None:
    driver, upstream = make(breaker=BreakerConfig(threshold=2)), Scripted(clock, *(down() for _ in range(9)))
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    assert upstream.at == [0, 2]


def test_breaker__opened_by_others_before_a_retry__refuses_with_the_error_as_cause(
    make: Make, clock: ManualClock
) -> None:
    driver = make(breaker=BreakerConfig(threshold=3, cooldown_seconds=60))
    breaker = driver.upstream.breaker
    assert breaker is not None
    first = down()

    def fails_and_others_too() -> None:
        clock.sleep = opens  # type: ignore[method-assign]
        clock.sleep_async = opens_async  # type: ignore[method-assign]
        raise first

    def opens(seconds: float) -> None:
        clock.advance(seconds)
        for _ in range(3):
            breaker.sync.record_failure("others")

    async def opens_async(seconds: float) -> None:
        opens(seconds)

    with pytest.raises(CircuitOpenError, match="others") as raised:
        driver.call(fails_and_others_too)
    assert raised.value.__cause__ is first


def test_breaker__opened_during_the_wait_for_the_limit__refuses_and_returns_the_token(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, upstream = make("1/s", breaker=BreakerConfig(threshold=1)), Scripted(clock)
    driver.call(upstream)
    breaker, wait = driver.upstream.breaker, clock.wait
    assert breaker is not None

    def opened_meanwhile(bell: AutoResetEvent, seconds: float | None) -> None:
        breaker.sync.record_failure("meanwhile")
        wait(bell, seconds)

    monkeypatch.setattr(clock, "wait", opened_meanwhile)
    with pytest.raises(CircuitOpenError, match="meanwhile"):
        driver.call(upstream)
    assert upstream.at == [0]
    assert driver.state().limiter.tokens_available == 1


def test_breaker__half_open_and_limit_refuses__releases_the_probe(make: Make, clock: ManualClock) -> None:
    driver = make(
        "1/minute", breaker=BreakerConfig(threshold=1, cooldown_seconds=10), retry=False, max_wait=1
    )
    upstream = Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    clock.advance(11)
    with pytest.raises(LimitReachedError):
        driver.call(upstream)
    assert driver.report is not None
    assert driver.report.circuit == "half_open"
    assert driver.state().breaker.probes == ()
    clock.advance(60)
    assert driver.call(upstream) == "well"
    assert driver.state().breaker.phase == "closed"


@pytest.mark.parametrize("probe_seconds", [60, 0.5])  # the probe is still valid, or expired and granted again
def test_breaker__probe_after_a_wait_for_the_limit__counts(
    make: Make, clock: ManualClock, probe_seconds: float
) -> None:
    config = BreakerConfig(threshold=1, cooldown_seconds=0.1, probe_seconds=probe_seconds)
    driver = make("1/s", breaker=config, retry=False)
    upstream = Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    clock.advance(0.2)
    assert driver.call(upstream) == "well"
    assert upstream.at == [0, 1]
    assert driver.state().breaker.phase == "closed"


def test_breaker__ramp_and_wait_for_the_limit__keeps_its_admission(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BreakerConfig(threshold=1, cooldown_seconds=1, ramp_steps=2, ramp_seconds=100)
    driver, upstream = make("1/s", breaker=config, retry=False, max_wait=30), Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    clock.advance(10)
    driver.call(upstream)
    assert driver.state().breaker.phase == "ramp"
    draws = [0.0, 0.99]
    monkeypatch.setattr("comporta.breaker.cached_state.fraction", lambda: draws.pop(0))
    assert driver.call(upstream) == "well"
    assert draws == []
    assert driver.report is not None
    assert driver.report.circuit == "ramp"


def test_breaker__ramp_drawn_against_a_retry__the_retry_is_still_made(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BreakerConfig(threshold=5, cooldown_seconds=1, ramp_steps=2, ramp_seconds=100)
    driver = make(breaker=config)
    breaker = driver.upstream.breaker
    assert breaker is not None
    for _ in range(5):
        breaker.sync.record_failure()
    clock.advance(2)
    assert driver.call(Scripted(clock)) == "well"
    draws = [0.0, 0.99, 0.0]  # the first attempt, the check before the retry, the retry
    monkeypatch.setattr("comporta.breaker.cached_state.fraction", lambda: draws.pop(0))
    upstream = Scripted(clock, Response(429))
    assert driver.call(upstream) == "well"
    assert (upstream.at, draws) == ([0, 2], [])


def test_count__series__counts_one_failure_for_all_attempts(make: Make, clock: ManualClock) -> None:
    driver = make(breaker=BreakerConfig(threshold=2), count="series")
    upstream = Scripted(clock, *(down() for _ in range(4)))
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    assert len(upstream.at) == 4
    assert driver.state().breaker.failures == 1
    assert driver.call(Scripted(clock, down())) == "well"
    assert driver.state().breaker.failures == 0


def test_count__series_with_its_retry_refused__counts_one_failure(make: Make, clock: ManualClock) -> None:
    driver = make("1/hour", breaker=BreakerConfig(threshold=2), count="series")
    error = down()
    with pytest.raises(LimitReachedError) as raised:
        driver.call(Scripted(clock, error))
    assert raised.value.__cause__ is error
    assert driver.state().breaker.failures == 1


def test_count__series_of_429_with_its_retry_limited__counts_nothing(make: Make, clock: ManualClock) -> None:
    driver = make("1/hour", breaker=BreakerConfig(threshold=1), count="series")
    with pytest.raises(LimitReachedError) as raised:
        driver.call(Scripted(clock, Response(429)))
    assert raised.value.__cause__ is None
    assert driver.state().breaker.phase == "closed"


def test_count__series_started_as_a_probe__releases_it_between_attempts(
    make: Make, clock: ManualClock
) -> None:
    config = BreakerConfig(threshold=1, cooldown_seconds=1, probes=2)
    driver = make("1/hour", breaker=config, count="series")
    breaker = driver.upstream.breaker
    assert breaker is not None
    breaker.sync.record_failure()
    clock.advance(2)
    with pytest.raises(LimitReachedError):
        driver.call(Scripted(clock, down()))
    assert (driver.state().breaker.phase, driver.state().breaker.probes) == ("half_open", ())


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_response__retryable_status__is_closed_and_retried(
    make: Make, clock: ManualClock, status: int
) -> None:
    driver, bad, good = make(), Response(status), Response()
    assert driver.call(Scripted(clock, bad, good)) is good
    assert (bad.closed, good.closed) == (1, 0)


@pytest.mark.parametrize("status", [200, 301, 400, 404, 501])
def test_response__not_retryable__is_returned_unchanged(make: Make, clock: ManualClock, status: int) -> None:
    driver, response = make(), Response(status)
    assert driver.call(Scripted(clock, response)) is response
    assert response.closed == 0


def test_response__retryable_until_the_last_attempt__is_returned_open(make: Make, clock: ManualClock) -> None:
    driver, responses = make(), [Response(500) for _ in range(4)]
    assert driver.call(Scripted(clock, *responses)) is responses[-1]
    assert [response.closed for response in responses] == [1, 1, 1, 0]
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.reason) == ("failure", "500")


def test_refusals__hundred_429s__lower_the_limit_and_never_open_the_breaker(
    make: Make, clock: ManualClock
) -> None:
    driver = make(breaker=BreakerConfig(threshold=1), retry=False)
    for _ in range(100):
        assert driver.call(Scripted(clock, Response(429))).status_code == 429
        clock.advance(0.1)
    state = driver.state()
    assert (state.breaker.phase, state.breaker.failures) == ("closed", 0)
    assert (state.limit, state.original) == (pytest.approx(100), pytest.approx(1000))
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.reason) == ("refused", "429")
    for _ in range(60):
        clock.advance(0.25)
        driver.call(Scripted(clock))
    assert driver.state().limit == pytest.approx(1000)


def test_refusals__hundred_429s_at_once__lower_the_limit_once(make: Make, clock: ManualClock) -> None:
    driver = make(retry=False)
    for _ in range(100):
        driver.call(Scripted(clock, Response(429)))
    assert driver.state().limit == pytest.approx(800)


def test_refusals__attempts_after_a_wait__are_as_old_as_their_own_start(
    make: Make, clock: ManualClock
) -> None:
    """Otherwise a call that waited across a drop would never lower the limit."""
    driver = make("10/s", max_wait=60)
    for _ in range(10):
        driver.call(Scripted(clock))
    driver.call(Scripted(clock, *[Response(429)] * 4))
    assert driver.state().limit == pytest.approx(10 * 0.8**4, rel=0.001)


def test_refusals__rule_steps__lowers_by_a_tenth_of_the_original(make: Make, clock: ManualClock) -> None:
    driver = make(degradation=Degradation, retry=False)
    for _ in range(3):
        driver.call(Scripted(clock, Response(429)))
        clock.advance(0.1)
    assert driver.state().limit == pytest.approx(700)


def test_refusals__rule_accepted__lowers_to_the_accepted_rate(
    make: Make, clock: ManualClock, store: MemoryStore
) -> None:
    driver = make(degradation=lambda limiter: Degradation(limiter, rule="accepted"), retry=False)
    for _ in range(200):
        driver.call(Scripted(clock))
    driver.call(Scripted(clock, Response(429)))
    assert driver.state().limit == pytest.approx(170)


def test_failures__many_500s__do_not_change_the_limit(make: Make, clock: ManualClock) -> None:
    driver = make(retry=False, breaker=False)
    for _ in range(10):
        driver.call(Scripted(clock, Response(500)))
    assert driver.state().limit == 1000


def test_pause__429_with_retry_after__all_callers_wait_and_succeed(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver, other = make(), Upstream("pncp", "1000/s", state=store)
    upstream = Scripted(clock, Response(429, retry_after="3"))
    assert driver.call(upstream) == "well"
    assert upstream.at[0] == 0
    assert 3 <= upstream.at[1] <= 3.3
    driver.call(Scripted(clock, Response(429, retry_after="4")))
    elsewhere = Scripted(clock)
    other.sync.call(elsewhere)
    assert elsewhere.at[0] == 0  # the retry above waited until the pause ended
    assert driver.report is not None
    assert driver.report.waited == pytest.approx(4, abs=0.5)


def test_pause__longer_than_max_wait__refuses_at_once_with_retry_after(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver, other = make(), Upstream("pncp", "1000/s", state=store)
    refused = Response(429, retry_after="60")
    assert driver.call(Scripted(clock, refused)) is refused
    assert refused.closed == 0
    with pytest.raises(LimitReachedError, match=r"paused by the upstream for 60\.0 s more") as raised:
        other.sync.call(Scripted(clock))
    assert raised.value.retry_after == pytest.approx(60)


def test_pause__503_with_retry_after__is_a_failure_and_a_pause(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver, upstream = make(), Scripted(clock, Response(503, retry_after="4"))
    assert driver.call(upstream) == "well"
    assert 4 <= upstream.at[1] <= 4.4
    driver.call(Scripted(clock, Response(503, retry_after="9")))
    assert driver.state().breaker.failures == 1
    assert driver.state().limiter.paused == pytest.approx(9)


def test_pause__503_shorter_than_the_backoff__waits_the_backoff(make: Make, clock: ManualClock) -> None:
    driver, upstream = make(), Scripted(clock, Response(503, retry_after="1"))
    assert driver.call(upstream) == "well"
    assert upstream.at == [0, 2]


@pytest.mark.parametrize(
    "headers",
    [
        {"ratelimit": '"default";r=0;t=7'},
        {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "7"},
    ],
)
def test_pause__success_with_ratelimit_used_up__the_next_call_waits(
    make: Make, clock: ManualClock, headers: dict[str, str]
) -> None:
    driver = make(max_wait=10)
    assert driver.call(Scripted(clock, Response(200, **headers))).status_code == 200
    upstream = Scripted(clock)
    driver.call(upstream)
    assert 7 <= upstream.at[0] <= 7.3


def test_pause__longer_than_pause_max__is_capped(make: Make, clock: ManualClock) -> None:
    driver = make(pause_max=20, retry=False)
    driver.call(Scripted(clock, Response(429, retry_after="3600")))
    assert driver.state().limiter.paused == pytest.approx(20)


def test_pause__pause_max_zero__neither_starts_nor_ends_a_pause(make: Make, clock: ManualClock) -> None:
    driver = make(pause_max=0, retry=False, max_wait=60)
    driver.upstream.limiter.sync.pause(30)
    upstream = Scripted(clock, Response(429, retry_after="3600"))
    driver.call(upstream)
    assert 30 <= upstream.at[0] <= 30.3
    driver.upstream.limiter.sync.pause(30)
    driver.call(Scripted(clock, Response(429, retry_after="5")))
    assert driver.state().limiter.paused == 0
    driver.upstream.limiter.sync.pause(30)
    driver.run(_respond_during_pause(driver, Response(429, retry_after="5")))
    assert driver.state().limiter.paused == pytest.approx(30)


def _respond_during_pause(driver: Driver, response: Response) -> Any:
    """Return a response to a call that started before a pause of 30 seconds."""
    driver.upstream.limiter.sync.resume()

    def answers() -> Response:
        driver.upstream.limiter.sync.pause(30)
        return response

    if driver.runner is None:
        return driver.upstream.sync.call(answers)

    async def awaited() -> Response:
        return answers()

    return driver.upstream.call(awaited)


def test_budget__used_up__returns_the_last_answer_at_once(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    retry = Retry(draw=lowest, state=store, budget=Budget(ratio=0, least=1))
    driver, bad = make(retry=retry, breaker=False), Response(500)
    first = Scripted(clock, Response(500))
    assert driver.call(first) == "well"
    second = Scripted(clock, bad)
    assert driver.call(second) is bad
    assert (second.at, bad.closed) == ([0], 0)
    assert driver.state().retries_last_minute == 1


def test_budget__refused_calls__do_not_count_as_calls(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver = make("10/hour", max_wait=0)
    for _ in range(10):
        driver.call(Scripted(clock))
    for _ in range(50):
        with pytest.raises(LimitReachedError):
            driver.call(Scripted(clock))
    budget = driver.upstream._policies.budget
    assert budget is not None
    assert budget._reporter.calls == 10


def test_budget__none__retries_are_not_bounded(make: Make, store: MemoryStore, clock: ManualClock) -> None:
    driver = make(retry=Retry(draw=lowest, state=store, budget=None), breaker=False)
    for _ in range(20):
        assert driver.call(Scripted(clock, down())) == "well"
    assert driver.state().retries_last_minute is None


def test_budget__named_in_the_retry__is_used(store: MemoryStore) -> None:
    retry = Retry(state=store, name="everything")
    upstream = Upstream("pncp", "1/s", retry=retry, state=store)
    assert upstream._policies.budget is retry.budget


def test_deadline__next_delay_would_pass_it__gives_up(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver = make(retry=Retry(draw=lowest, state=store, deadline=5))
    upstream = Scripted(clock, *(down() for _ in range(4)))
    with pytest.raises(OSError, match="no route"):
        driver.call(upstream)
    assert upstream.at == [0, 2]


def test_deadline__no_capacity_before_it__no_attempt_starts_after_it(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver = make("1/minute burst 1", max_wait=100, retry=Retry(draw=lowest, state=store, deadline=5))
    upstream = Scripted(clock, down())
    with pytest.raises(LimitReachedError, match="had no capacity within 3 s") as raised:
        driver.call(upstream)
    assert isinstance(raised.value.__cause__, OSError)
    assert upstream.at == [0]


def test_deadline__first_attempt_waits_for_the_limit__waits_up_to_max_wait(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver = make("1/minute burst 1", max_wait=100, retry=Retry(draw=lowest, state=store, deadline=5))
    upstream = Scripted(clock)
    driver.call(upstream)
    driver.call(upstream)
    assert upstream.at == [0, 60]


def test_max_concurrent__all_permits_in_use__refuses_and_takes_no_token(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver = make(max_concurrent=1, max_wait=0)
    inner: list[BaseException] = []

    def calls_again() -> str:
        left = driver.upstream.limiter.sync.stats().tokens_available
        with pytest.raises(LimitReachedError, match="1 calls are in flight") as raised:
            driver.upstream.sync.call(lambda: None)
        inner.append(raised.value)
        assert driver.upstream.limiter.sync.stats().tokens_available == left
        assert driver.upstream.sync.get_state().calls_in_flight == 1
        return "done"

    assert driver.call(calls_again) == "done"
    assert len(inner) == 1
    assert driver.state().calls_in_flight == 0


def test_max_concurrent__calls_fail__permits_are_released(make: Make, clock: ManualClock) -> None:
    driver = make(max_concurrent=1, breaker=False)
    for _ in range(3):
        assert driver.call(Scripted(clock, down())) == "well"
    assert driver.state().calls_in_flight == 0


def test_classify__custom_function__decides_on_results_and_errors(make: Make, clock: ManualClock) -> None:
    seen: list[Any] = []

    def classify(result: Any, error: Exception | None) -> Outcome:
        seen.append(result if error is None else error)
        return Outcome("failure", repeat=True, reason="empty") if result == [] else Outcome("ok")

    driver, error = make(classify=classify, breaker=BreakerConfig(threshold=9)), down()
    assert driver.call(Scripted(clock, [], ["page"])) == ["page"]
    with pytest.raises(OSError, match="no route"):
        driver.call(Scripted(clock, error))
    assert seen == [[], ["page"], error]
    assert driver.state().breaker.failures == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("fine", "classify must return an Outcome, got 'fine'"),
        (Outcome("fine"), "kind must be one of 'ok', 'failure', 'refused', 'neither', got 'fine'"),
        (Outcome("ok", pause=float("nan")), "pause must be None or at least 0 seconds, got nan"),
        (Outcome("ok", pause=-1.0), "pause must be None or at least 0 seconds, got -1.0"),
    ],
)
def test_classify__returns_nonsense__raises_naming_it_and_releases_everything(
    make: Make, clock: ManualClock, answer: Any, message: str
) -> None:
    driver = make(classify=lambda result, error: answer, breaker=BreakerConfig(threshold=1), max_concurrent=1)
    breaker = driver.upstream.breaker
    assert breaker is not None
    breaker.sync.record_failure()
    clock.advance(31)
    response = Response()
    with pytest.raises((TypeError, ValueError), match=message):
        driver.call(Scripted(clock, response))
    state = driver.state()
    assert (state.calls_in_flight, state.breaker.probes, response.closed) == (0, (), 1)
    assert driver.report is not None
    assert driver.report.outcome == "error"
    assert message in driver.report.reason


def test_nested__inner_upstream_refuses__says_nothing_about_the_outer(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    driver = make(breaker=BreakerConfig(threshold=1))
    inner = Upstream("inner", "1/hour", max_wait=0, state=store)
    inner.sync.call(lambda: None)
    with pytest.raises(LimitReachedError) as raised:
        driver.call(lambda: inner.sync.call(lambda: None))
    assert raised.value.name == "inner"
    state = driver.state()
    assert (state.breaker.phase, state.limiter.paused) == ("closed", 0)
    assert driver.report is not None
    assert (driver.report.source, driver.report.outcome, driver.report.attempts) == ("pncp", "neither", 1)


def test_store_error__while_reporting_the_result__the_caller_gets_the_result(
    make: Make, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make(retry=False, max_concurrent=2)

    def fails(*_: Any) -> None:
        raise StateUnavailableError("gone")

    def answers(answer: Any) -> Any:
        monkeypatch.setattr(store, "apply", fails)
        if isinstance(answer, Exception):
            raise answer
        return answer

    refused, error = Response(429, retry_after="9"), down()
    assert driver.call(answers, refused) is refused
    monkeypatch.undo()
    clock.advance(9)
    with pytest.raises(OSError, match="no route") as raised:
        driver.call(answers, error)
    assert raised.value is error


def test_store_error__limit_report_fails__the_breaker_is_still_updated(
    make: Make, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make(retry=False)

    def fails(*_: Any) -> Any:
        raise StateUnavailableError("gone")

    monkeypatch.setattr(type(driver.upstream.limiter._flows.overrides), "pause_flow", fails)
    driver.call(Scripted(clock, Response(503, retry_after="9")))
    assert driver.state().breaker.failures == 1


def test_store_error__reading_the_limit_fails__still_raises_limit_reached(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = make("2/s", max_wait=0)
    driver.call(Scripted(clock))
    driver.call(Scripted(clock))

    def fails(*_: Any) -> Any:
        raise StateUnavailableError("gone")

    monkeypatch.setattr(driver.upstream.limiter._flows.__class__, "peek_flow", fails)
    with pytest.raises(LimitReachedError) as raised:
        driver.call(Scripted(clock))
    assert raised.value.retry_after == 0.5


def test_store_error__before_the_call__is_raised_and_nothing_stays_held(
    make: Make, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, upstream = make("1/s", max_concurrent=2), Scripted(clock)
    monkeypatch.setattr(store, "apply", lambda *_: (_ for _ in ()).throw(StateUnavailableError("gone")))
    with pytest.raises(StateUnavailableError):
        driver.call(upstream)
    monkeypatch.undo()
    assert upstream.at == []
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.reason) == ("error", "StateUnavailableError: gone")
    assert driver.call(upstream) == "well"


@pytest.mark.parametrize("runner", ["blocking"], indirect=True)
def test_fallback__upstream_asks_for_a_pause__this_worker_pauses(clock: ManualClock, runner: None) -> None:
    store, primary = manual_failover(clock)
    upstream = Upstream("pncp", "1000/s", retry=Retry(draw=lowest, state="memory://"), state=store)
    assert upstream.sync.call(Scripted(clock)) == "well"
    primary.error = StateUnavailableError("gone")
    clock.advance(1)
    scripted = Scripted(clock, Response(429, retry_after="3"))
    assert upstream.sync.call(scripted) == "well"
    assert 3 <= scripted.at[1] <= 3.4
    assert upstream.sync.get_state().fallback is not None
    assert upstream.sync.call(Scripted(clock, Response(429, retry_after="30"))).status_code == 429
    with pytest.raises(LimitReachedError, match="paused by the upstream") as raised:
        upstream.sync.call(Scripted(clock))
    assert raised.value.retry_after >= 30
    assert upstream.sync.get_state().as_dict()["fallback"]["reason"]


def test_fallback__paused_by_another_worker_before__this_worker_pauses(
    clock: ManualClock, runner: None
) -> None:
    store, primary = manual_failover(clock)
    upstream = Upstream("pncp", "1000/s", max_wait=20, retry=False, state=store)
    assert upstream.sync.call(Scripted(clock)) == "well"
    Upstream("pncp", "1000/s", state=primary).limiter.sync.pause(30)
    run_heartbeat(store)  # the heartbeat reads the pause
    primary.error = StateUnavailableError("gone")
    clock.advance(5)
    with pytest.raises(LimitReachedError, match="paused by the upstream") as raised:
        upstream.sync.call(Scripted(clock))
    assert 25 <= raised.value.retry_after <= 27.5
    clock.advance(10)
    scripted = Scripted(clock)
    assert upstream.sync.call(scripted) == "well"
    assert 15 <= scripted.at[0] <= 16.5


def test_fallback__outage_begins_with_the_token_of_a_call__this_worker_pauses(
    clock: ManualClock, runner: None
) -> None:
    store, primary = manual_failover(clock)
    limit = LimitConfig(1000, 1000, fallback="open")
    upstream = Upstream("pncp", limit, breaker=False, retry=False, state=store)
    assert upstream.sync.call(Scripted(clock)) == "well"
    Upstream("pncp", limit, breaker=False, retry=False, state=primary).limiter.sync.pause(30)
    run_heartbeat(store)  # the heartbeat reads the pause
    primary.error = StateUnavailableError("gone")
    with pytest.raises(LimitReachedError, match="paused by the upstream"):
        upstream.sync.call(Scripted(clock))


@pytest.mark.parametrize("during_outage", [True, False])
def test_recovery__paused_during_the_outage__all_workers_pause(
    clock: ManualClock, runner: None, *, during_outage: bool
) -> None:
    store, primary = manual_failover(clock)
    upstream = Upstream("pncp", "1000/s", retry=False, state=store)
    refused, gone = Scripted(clock, Response(429, retry_after="30")), StateUnavailableError("gone")
    assert upstream.sync.call(Scripted(clock)) == "well"
    primary.error = gone if during_outage else None
    assert upstream.sync.call(refused).status_code == 429
    primary.error = gone
    with pytest.raises(LimitReachedError, match="paused by the upstream"):
        upstream.sync.call(Scripted(clock))
    primary.close()  # the server loses its state
    primary.error = None
    clock.advance(10)
    run_heartbeat(store)
    assert upstream.limiter.fallback is None
    primary.error = gone  # the next outage begins during the report
    with pytest.raises(LimitReachedError, match="paused by the upstream"):
        upstream.sync.call(Scripted(clock))
    primary.error = None
    run_heartbeat(store)
    upstream.sync.call(Scripted(clock))  # the store in memory does not report the pause by itself
    other = Upstream("pncp", "1000/s", retry=False, state=primary)
    with pytest.raises(LimitReachedError, match="paused by the upstream") as raised:
        other.sync.call(Scripted(clock))
    assert raised.value.retry_after == pytest.approx(20, abs=1)
    other.limiter.sync.resume()
    upstream.sync.call(Scripted(clock))
    assert other.sync.call(Scripted(clock)) == "well"  # the pause is reported once


def test_fallback__rule_accepted__multiplies_by_the_worker_count(clock: ManualClock) -> None:
    store, _ = manual_failover(clock)
    upstream = Upstream(
        "pncp",
        "1000/s",
        retry=False,
        degradation=lambda limiter: Degradation(limiter, rule="accepted"),
        state=store,
    )
    for _ in range(200):
        upstream.sync.call(Scripted(clock))
    assert upstream._policies.accepted_rate == 200 * store.worker_count


def test_get_state__as_dict__is_json_compatible(make: Make, clock: ManualClock) -> None:
    driver = make(max_concurrent=3)
    plain = driver.state().as_dict()
    assert plain["name"] == "pncp"
    assert plain["breaker"]["phase"] == "closed"
    assert plain["limiter"]["fallback"] is None
    bare = make("7/s", breaker=False, state=MemoryStore(clock)).state().as_dict()
    assert (bare["breaker"], bare["calls_in_flight"], bare["limit"]) == (None, None, 7)


@pytest.mark.parametrize("degradation", [True, False])
def test_get_state__limit_overridden__has_override_and_configured_limit(
    make: Make, clock: ManualClock, degradation: bool
) -> None:
    driver = make("10/s", degradation=degradation)
    driver.upstream.limiter.sync.set_limit("3/s")
    changed = driver.state()
    assert (changed.limit, changed.original, changed.configured) == (3, 3, 10)
    driver.upstream.limiter.sync.set_limit(None)
    revoked = driver.state()
    assert (revoked.limit, revoked.original, revoked.configured) == (10, 10, 10)


@pytest.mark.parametrize("runner", ["blocking"], indirect=True)
def test_lease__on_the_limit__calls_use_leased_tokens(runner: None) -> None:
    with shared_store() as store:
        upstream = Upstream("leased", LimitConfig(1000, 1000, lease=True), max_wait=0, state=store)
        assert [upstream.sync.call(lambda: "well") for _ in range(20)] == ["well"] * 20
        upstream.limiter.sync.pause(60)
        with pytest.raises(LimitReachedError, match="paused"):
            upstream.sync.call(lambda: "well")
