"""How calls go through all policies, blocking and awaiting: one behaviour, on a clock moved by hand."""

from __future__ import annotations

from typing import Any

import pytest
from tests.stores.switchable import by_hand, moved
from tests.support import shared_store
from tests.upstream.conftest import Make
from tests.upstream.faces import Face, Response, Scripted, least

from comporta import (
    BreakerConfig,
    Budget,
    CircuitOpenError,
    LimitConfig,
    LimitReachedError,
    Retry,
    Upstream,
    Verdict,
)
from comporta.errors import StateUnavailableError
from comporta.limits.degradation import Degradation
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.threads import Bell


def down() -> OSError:
    return OSError("no route")


def test_call__all_is_well__is_made_once_with_its_arguments(make: Make) -> None:
    face = make()
    assert face.call(lambda *args, **kwargs: (args, kwargs), 1, two=2) == ((1,), {"two": 2})
    assert face.guarded(lambda *args, **kwargs: (args, kwargs), 1, two=2) == ((1,), {"two": 2})
    assert face.report is not None
    assert (face.report.source, face.report.outcome, face.report.attempts) == ("pncp", "ok", 1)


def test_call__fails_twice__is_tried_again_after_two_and_four_seconds(make: Make, clock: ManualClock) -> None:
    face, upstream = make(), Scripted(clock, down(), down())
    assert face.call(upstream) == "well"
    assert upstream.at == [0, 2, 6]
    assert face.report is not None
    assert (face.report.attempts, face.report.waited, face.report.took) == (3, 6, 6)


def test_call__fails_throughout__raises_the_very_error_of_its_last_attempt(
    make: Make, clock: ManualClock
) -> None:
    errors = [down() for _ in range(4)]
    face, upstream = make(), Scripted(clock, *errors)
    with pytest.raises(OSError, match="no route") as raised:
        face.call(upstream)
    assert raised.value is errors[-1]
    assert (errors[-1].__cause__, errors[-1].__context__) == (None, None)
    assert upstream.at == [0, 2, 6, 14]


def test_call__mistake_of_the_program__is_not_tried_again(make: Make, clock: ManualClock) -> None:
    face, upstream = make(), Scripted(clock, KeyError("page"))
    with pytest.raises(KeyError):
        face.call(upstream)
    assert upstream.at == [0]


def test_call__retry_does_not_want_the_error__raises_it_at_once(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face, upstream = make(retry=Retry(on=TimeoutError, state=store)), Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    assert upstream.at == [0]


@pytest.mark.parametrize("off", [False, None])
def test_call__without_retry_breaker_and_degradation__fails_once_and_opens_nothing(
    make: Make, clock: ManualClock, off: bool | None
) -> None:
    face = make(retry=off, breaker=off, degradation=off)
    upstream = Scripted(clock, *(down() for _ in range(50)), Response(429))
    for _ in range(50):
        with pytest.raises(OSError, match="no route"):
            face.call(upstream)
    assert face.call(upstream).status_code == 429
    assert face.call(upstream) == "well"
    state = face.state()
    assert (state.breaker, state.retries_last_minute, state.calls_in_flight) == (None, None, None)


def test_limit__used_up__calls_wait_instead_of_failing(make: Make, clock: ManualClock) -> None:
    face, upstream = make("1/s"), Scripted(clock)
    for _ in range(4):
        face.call(upstream)
    assert upstream.at == [0, 1, 2, 3]
    assert face.report is not None
    assert face.report.waited == pytest.approx(1)


def test_limit__no_room_within_max_wait__says_when_there_will_be(make: Make, clock: ManualClock) -> None:
    face, upstream = make("1/minute", max_wait=5), Scripted(clock)
    face.call(upstream)
    with pytest.raises(LimitReachedError, match=r"pncp: the limit of .* left no room in 5 s") as raised:
        face.call(upstream)
    assert raised.value.retry_after == pytest.approx(60)
    assert raised.value.name == "pncp"
    assert face.report is not None
    assert (face.report.outcome, face.report.attempts) == ("limited", 0)
    assert upstream.at == [0]


def test_breaker__threshold_reached__refuses_at_once_and_takes_nothing_from_the_limit(
    make: Make, clock: ManualClock
) -> None:
    face = make(breaker=BreakerConfig(threshold=2, cooldown_seconds=30), retry=False)
    upstream = Scripted(clock, down(), down())
    for _ in range(2):
        with pytest.raises(OSError, match="no route"):
            face.call(upstream)
    left = face.state().limiter.tokens_available
    with pytest.raises(CircuitOpenError, match="OSError: no route") as raised:
        face.call(upstream)
    assert raised.value.retry_after == pytest.approx(30)
    assert face.state().limiter.tokens_available == left
    assert face.report is not None
    assert (face.report.outcome, face.report.circuit, face.report.attempts) == ("open", "open", 0)
    assert face.report.why == "OSError: no route"


def test_breaker__opened_by_the_first_attempts__the_last_error_comes_out_and_nothing_is_tried_again(
    make: Make, clock: ManualClock
) -> None:
    face, upstream = make(breaker=BreakerConfig(threshold=2)), Scripted(clock, *(down() for _ in range(9)))
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    assert upstream.at == [0, 2]


def test_breaker__opened_by_others_during_a_wait_to_retry__refusal_comes_from_the_last_error(
    make: Make, clock: ManualClock
) -> None:
    face = make(breaker=BreakerConfig(threshold=3, cooldown_seconds=60))
    breaker = face.upstream.breaker
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
        face.call(fails_and_others_too)
    assert raised.value.__cause__ is first


def test_breaker__opened_during_the_wait_for_the_limit__refuses_and_the_token_is_given_back(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face, upstream = make("1/s", breaker=BreakerConfig(threshold=1)), Scripted(clock)
    face.call(upstream)
    breaker, wait = face.upstream.breaker, clock.wait
    assert breaker is not None

    def opened_meanwhile(bell: Bell, seconds: float | None) -> None:
        breaker.sync.record_failure("meanwhile")
        wait(bell, seconds)

    monkeypatch.setattr(clock, "wait", opened_meanwhile)
    with pytest.raises(CircuitOpenError, match="meanwhile"):
        face.call(upstream)
    assert upstream.at == [0]
    assert face.state().limiter.tokens_available == 1


def test_breaker__half_open__one_probe_and_a_refusal_by_the_limit_gives_it_back(
    make: Make, clock: ManualClock
) -> None:
    face = make("1/minute", breaker=BreakerConfig(threshold=1, cooldown_seconds=10), retry=False, max_wait=1)
    upstream = Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    clock.advance(11)
    with pytest.raises(LimitReachedError):
        face.call(upstream)
    assert face.report is not None
    assert face.report.circuit == "half_open"
    assert face.state().breaker.probes == ()
    clock.advance(60)
    assert face.call(upstream) == "well"
    assert face.state().breaker.phase == "closed"


@pytest.mark.parametrize("probe_seconds", [60, 0.5])  # it stays the same probe; it ended, and is taken anew
def test_breaker__probe_after_a_wait_for_the_limit__counts(
    make: Make, clock: ManualClock, probe_seconds: float
) -> None:
    config = BreakerConfig(threshold=1, cooldown_seconds=0.1, probe_seconds=probe_seconds)
    face = make("1/s", breaker=config, retry=False)
    upstream = Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    clock.advance(0.2)
    assert face.call(upstream) == "well"
    assert upstream.at == [0, 1]
    assert face.state().breaker.phase == "closed"


def test_breaker__ramp__a_place_in_it_is_not_drawn_for_twice(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BreakerConfig(threshold=1, cooldown_seconds=1, ramp_steps=2, ramp_seconds=100)
    face, upstream = make("1/s", breaker=config, retry=False, max_wait=30), Scripted(clock, down())
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    clock.advance(10)
    face.call(upstream)
    assert face.state().breaker.phase == "ramp"
    draws = [0.0, 0.99]
    monkeypatch.setattr("comporta.breaker.view.fraction", lambda: draws.pop(0))
    assert face.call(upstream) == "well"
    assert draws == []
    assert face.report is not None
    assert face.report.circuit == "ramp"


def test_breaker__ramp_refuses_the_next_attempt__is_not_known_beforehand(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BreakerConfig(threshold=5, cooldown_seconds=1, ramp_steps=2, ramp_seconds=100)
    face = make(breaker=config)
    breaker = face.upstream.breaker
    assert breaker is not None
    for _ in range(5):
        breaker.sync.record_failure()
    clock.advance(2)
    assert face.call(Scripted(clock)) == "well"
    draws = [0.0, 0.99, 0.0]  # for the first attempt, for whether a second is in vain, for that one
    monkeypatch.setattr("comporta.breaker.view.fraction", lambda: draws.pop(0))
    upstream = Scripted(clock, Response(408))
    assert face.call(upstream) == "well"
    assert (upstream.at, draws) == ([0, 2], [])


def test_count__series__is_one_failure_however_many_attempts(make: Make, clock: ManualClock) -> None:
    face = make(breaker=BreakerConfig(threshold=2), count="series")
    upstream = Scripted(clock, *(down() for _ in range(4)))
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    assert len(upstream.at) == 4
    assert face.state().breaker.failures == 1
    assert face.call(Scripted(clock, down())) == "well"
    assert face.state().breaker.failures == 0


def test_count__series_whose_next_attempt_is_refused__is_one_failure(make: Make, clock: ManualClock) -> None:
    face = make("1/hour", breaker=BreakerConfig(threshold=2), count="series")
    error = down()
    with pytest.raises(LimitReachedError) as raised:
        face.call(Scripted(clock, error))
    assert raised.value.__cause__ is error
    assert face.state().breaker.failures == 1


def test_count__series_of_a_refused_answer__next_attempt_without_room_counts_nothing(
    make: Make, clock: ManualClock
) -> None:
    face = make("1/hour", breaker=BreakerConfig(threshold=1), count="series")
    with pytest.raises(LimitReachedError) as raised:
        face.call(Scripted(clock, Response(429)))
    assert raised.value.__cause__ is None
    assert face.state().breaker.phase == "closed"


def test_count__series_begun_as_a_probe__gives_it_back_between_attempts(
    make: Make, clock: ManualClock
) -> None:
    config = BreakerConfig(threshold=1, cooldown_seconds=1, probes=2)
    face = make("1/hour", breaker=config, count="series")
    breaker = face.upstream.breaker
    assert breaker is not None
    breaker.sync.record_failure()
    clock.advance(2)
    with pytest.raises(LimitReachedError):
        face.call(Scripted(clock, down()))
    assert (face.state().breaker.phase, face.state().breaker.probes) == ("half_open", ())


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_response__worth_another_try__is_closed_and_tried_again(
    make: Make, clock: ManualClock, status: int
) -> None:
    face, bad, good = make(), Response(status), Response()
    assert face.call(Scripted(clock, bad, good)) is good
    assert (bad.closed, good.closed) == (1, 0)


@pytest.mark.parametrize("status", [200, 301, 400, 404, 501])
def test_response__as_good_as_it_gets__comes_out_as_it_is(
    make: Make, clock: ManualClock, status: int
) -> None:
    face, response = make(), Response(status)
    assert face.call(Scripted(clock, response)) is response
    assert response.closed == 0


def test_response__bad_until_the_last_attempt__comes_out_open(make: Make, clock: ManualClock) -> None:
    face, responses = make(), [Response(500) for _ in range(4)]
    assert face.call(Scripted(clock, *responses)) is responses[-1]
    assert [response.closed for response in responses] == [1, 1, 1, 0]
    assert face.report is not None
    assert (face.report.outcome, face.report.why) == ("failure", "500")


def test_refusals__a_hundred_429s__never_open_the_breaker_but_lower_the_limit(
    make: Make, clock: ManualClock
) -> None:
    face = make(breaker=BreakerConfig(threshold=1), retry=False)
    for _ in range(100):
        assert face.call(Scripted(clock, Response(429))).status_code == 429
    state = face.state()
    assert (state.breaker.phase, state.breaker.failures) == ("closed", 0)
    assert (state.limit, state.original) == (pytest.approx(100), pytest.approx(1000))
    assert face.report is not None
    assert (face.report.outcome, face.report.why) == ("refused", "429")
    clock.advance(5)
    face.call(Scripted(clock))
    assert face.state().limit == pytest.approx(200)


def test_refusals__rule_accepted__lowers_to_what_was_being_accepted(
    make: Make, clock: ManualClock, store: MemoryStore
) -> None:
    face = make(degradation=lambda limiter: Degradation(limiter, rule="accepted"), retry=False)
    for _ in range(200):
        face.call(Scripted(clock))
    face.call(Scripted(clock, Response(429)))
    assert face.state().limit == pytest.approx(170)


def test_failures__many_500s__leave_the_limit_as_it_is(make: Make, clock: ManualClock) -> None:
    face = make(retry=False, breaker=False)
    for _ in range(10):
        face.call(Scripted(clock, Response(500)))
    assert face.state().limit == 1000


def test_pause__429_with_retry_after__everybody_waits_and_then_succeeds(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face, other = make(), Upstream("pncp", "1000/s", state=store)
    upstream = Scripted(clock, Response(429, retry_after="3"))
    assert face.call(upstream) == "well"
    assert upstream.at[0] == 0
    assert 3 <= upstream.at[1] <= 3.3
    face.call(Scripted(clock, Response(429, retry_after="4")))
    elsewhere = Scripted(clock)
    other.sync.call(elsewhere)
    assert elsewhere.at[0] == 0  # the retry above has waited for its end
    assert face.report is not None
    assert face.report.waited == pytest.approx(4, abs=0.5)


def test_pause__longer_than_anybody_waits__refuses_at_once_and_says_for_how_long(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face, other = make(), Upstream("pncp", "1000/s", state=store)
    refused = Response(429, retry_after="60")
    assert face.call(Scripted(clock, refused)) is refused
    assert refused.closed == 0
    with pytest.raises(LimitReachedError, match=r"paused by the upstream for 60\.0 s more") as raised:
        other.sync.call(Scripted(clock))
    assert raised.value.retry_after == pytest.approx(60)


def test_pause__503_with_retry_after__is_a_failure_and_a_pause(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face, upstream = make(), Scripted(clock, Response(503, retry_after="4"))
    assert face.call(upstream) == "well"
    assert 4 <= upstream.at[1] <= 4.4
    face.call(Scripted(clock, Response(503, retry_after="9")))
    assert face.state().breaker.failures == 1
    assert face.state().limiter.paused == pytest.approx(9)


def test_pause__503_shorter_than_the_backoff__the_backoff_is_kept(make: Make, clock: ManualClock) -> None:
    face, upstream = make(), Scripted(clock, Response(503, retry_after="1"))
    assert face.call(upstream) == "well"
    assert upstream.at == [0, 2]


@pytest.mark.parametrize(
    "headers",
    [
        {"ratelimit": '"default";r=0;t=7'},
        {"x_ratelimit_remaining": "0", "x_ratelimit_reset": "7"},
    ],
)
def test_pause__good_answer_with_nothing_left__the_next_call_waits(
    make: Make, clock: ManualClock, headers: dict[str, str]
) -> None:
    face = make(max_wait=10)
    assert face.call(Scripted(clock, Response(200, **headers))).status_code == 200
    upstream = Scripted(clock)
    face.call(upstream)
    assert 7 <= upstream.at[0] <= 7.3


def test_pause__asked_for_too_long__is_capped(make: Make, clock: ManualClock) -> None:
    face = make(pause_max=20, retry=False)
    face.call(Scripted(clock, Response(429, retry_after="3600")))
    assert face.state().limiter.paused == pytest.approx(20)


def test_pause__capped_at_nothing__neither_begins_nor_ends_one(make: Make, clock: ManualClock) -> None:
    face = make(pause_max=0, retry=False, max_wait=60)
    face.upstream.limiter.sync.pause(30)
    upstream = Scripted(clock, Response(429, retry_after="3600"))
    face.call(upstream)
    assert 30 <= upstream.at[0] <= 30.3
    face.upstream.limiter.sync.pause(30)
    face.call(Scripted(clock, Response(429, retry_after="5")))
    assert face.state().limiter.paused == 0
    face.upstream.limiter.sync.pause(30)
    face.run(_told(face, Response(429, retry_after="5")))
    assert face.state().limiter.paused == pytest.approx(30)


def _told(face: Face, response: Response) -> Any:
    """Answer a call that began before a pause of thirty seconds."""
    face.upstream.limiter.sync.resume()

    def answers() -> Response:
        face.upstream.limiter.sync.pause(30)
        return response

    if face.runner is None:
        return face.upstream.sync.call(answers)

    async def awaited() -> Response:
        return answers()

    return face.upstream.call(awaited)


def test_budget__used_up__the_last_answer_comes_out_at_once(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    retry = Retry(draw=least, state=store, budget=Budget(ratio=0, least=1))
    face, bad = make(retry=retry, breaker=False), Response(500)
    first = Scripted(clock, Response(500))
    assert face.call(first) == "well"
    second = Scripted(clock, bad)
    assert face.call(second) is bad
    assert (second.at, bad.closed) == ([0], 0)
    assert face.state().retries_last_minute == 1


def test_budget__calls_that_were_refused__earn_nothing(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face = make("10/hour", max_wait=0)
    for _ in range(10):
        face.call(Scripted(clock))
    for _ in range(50):
        with pytest.raises(LimitReachedError):
            face.call(Scripted(clock))
    budget = face.upstream.parts.budget
    assert budget is not None
    assert budget._calls == 10


def test_budget__none__retries_are_not_bounded(make: Make, store: MemoryStore, clock: ManualClock) -> None:
    face = make(retry=Retry(draw=least, state=store, budget=None), breaker=False)
    for _ in range(20):
        assert face.call(Scripted(clock, down())) == "well"
    assert face.state().retries_last_minute is None


def test_budget__named_in_the_retry__stays_that_one(store: MemoryStore) -> None:
    retry = Retry(state=store, name="everything")
    upstream = Upstream("pncp", "1/s", retry=retry, state=store)
    assert upstream.parts.budget is retry.budget


def test_deadline__next_wait_would_pass_it__gives_up(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face = make(retry=Retry(draw=least, state=store, deadline=5))
    upstream = Scripted(clock, *(down() for _ in range(4)))
    with pytest.raises(OSError, match="no route"):
        face.call(upstream)
    assert upstream.at == [0, 2]


def test_deadline__limit_has_no_room_before_it__no_attempt_begins_after_it(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face = make("1/minute burst 1", max_wait=100, retry=Retry(draw=least, state=store, deadline=5))
    upstream = Scripted(clock, down())
    with pytest.raises(LimitReachedError, match="left no room in 3 s") as raised:
        face.call(upstream)
    assert isinstance(raised.value.__cause__, OSError)
    assert upstream.at == [0]


def test_deadline__first_attempt_waits_for_the_limit__may_take_as_long_as_without(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face = make("1/minute burst 1", max_wait=100, retry=Retry(draw=least, state=store, deadline=5))
    upstream = Scripted(clock)
    face.call(upstream)
    face.call(upstream)
    assert upstream.at == [0, 60]


def test_max_concurrent__all_in_flight__refuses_and_takes_nothing_from_the_limit(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face = make(max_concurrent=1, max_wait=0)
    inner: list[BaseException] = []

    def calls_again() -> str:
        left = face.upstream.limiter.sync.stats().tokens_available
        with pytest.raises(LimitReachedError, match="1 calls are in flight") as raised:
            face.upstream.sync.call(lambda: None)
        inner.append(raised.value)
        assert face.upstream.limiter.sync.stats().tokens_available == left
        assert face.upstream.sync.get_state().calls_in_flight == 1
        return "done"

    assert face.call(calls_again) == "done"
    assert len(inner) == 1
    assert face.state().calls_in_flight == 0


def test_max_concurrent__calls_fail__permits_are_given_back(make: Make, clock: ManualClock) -> None:
    face = make(max_concurrent=1, breaker=False)
    for _ in range(3):
        assert face.call(Scripted(clock, down())) == "well"
    assert face.state().calls_in_flight == 0


def test_judge__of_ones_own__decides_on_results_and_errors(make: Make, clock: ManualClock) -> None:
    seen: list[Any] = []

    def judge(result: Any, error: Exception | None) -> Verdict:
        seen.append(result if error is None else error)
        return Verdict("failure", repeat=True, why="empty") if result == [] else Verdict("ok")

    face, error = make(judge=judge, breaker=BreakerConfig(threshold=9)), down()
    assert face.call(Scripted(clock, [], ["page"])) == ["page"]
    with pytest.raises(OSError, match="no route"):
        face.call(Scripted(clock, error))
    assert seen == [[], ["page"], error]
    assert face.state().breaker.failures == 0


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("fine", "judge must return a Verdict, got 'fine'"),
        (Verdict("fine"), "kind must be one of 'ok', 'failure', 'refused', 'neither', got 'fine'"),
        (Verdict("ok", pause=float("nan")), "pause must be None or at least 0 seconds, got nan"),
        (Verdict("ok", pause=-1.0), "pause must be None or at least 0 seconds, got -1.0"),
    ],
)
def test_judge__answers_nonsense__is_named_and_everything_given_back(
    make: Make, clock: ManualClock, answer: Any, message: str
) -> None:
    face = make(judge=lambda result, error: answer, breaker=BreakerConfig(threshold=1), max_concurrent=1)
    breaker = face.upstream.breaker
    assert breaker is not None
    breaker.sync.record_failure()
    clock.advance(31)
    response = Response()
    with pytest.raises((TypeError, ValueError), match=message):
        face.call(Scripted(clock, response))
    state = face.state()
    assert (state.calls_in_flight, state.breaker.probes, response.closed) == (0, (), 1)
    assert face.report is not None
    assert face.report.outcome == "error"
    assert message in face.report.why


def test_nested__inner_upstream_refuses__says_nothing_about_the_outer(
    make: Make, store: MemoryStore, clock: ManualClock
) -> None:
    face = make(breaker=BreakerConfig(threshold=1))
    inner = Upstream("inner", "1/hour", max_wait=0, state=store)
    inner.sync.call(lambda: None)
    with pytest.raises(LimitReachedError) as raised:
        face.call(lambda: inner.sync.call(lambda: None))
    assert raised.value.name == "inner"
    state = face.state()
    assert (state.breaker.phase, state.limiter.paused) == ("closed", 0)
    assert face.report is not None
    assert (face.report.source, face.report.outcome, face.report.attempts) == ("pncp", "neither", 1)


def test_state__raises_while_the_result_is_told__the_result_is_the_callers(
    make: Make, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = make(retry=False, max_concurrent=2)

    def fails(*_: Any) -> None:
        raise StateUnavailableError("gone")

    def answers(answer: Any) -> Any:
        monkeypatch.setattr(store, "apply", fails)
        if isinstance(answer, Exception):
            raise answer
        return answer

    refused, error = Response(429, retry_after="9"), down()
    assert face.call(answers, refused) is refused
    monkeypatch.undo()
    clock.advance(9)
    with pytest.raises(OSError, match="no route") as raised:
        face.call(answers, error)
    assert raised.value is error


def test_state__limit_cannot_be_told__the_breaker_is(
    make: Make, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = make(retry=False)

    def fails(*_: Any) -> Any:
        raise StateUnavailableError("gone")

    monkeypatch.setattr(face.upstream.limiter.verbs.__class__, "pause", fails)
    face.call(Scripted(clock, Response(503, retry_after="9")))
    assert face.state().breaker.failures == 1


def test_state__cannot_say_how_the_limit_stands__the_refusal_is_one_all_the_same(
    make: Make, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = make("2/s", max_wait=0)
    face.call(Scripted(clock))
    face.call(Scripted(clock))

    def fails(*_: Any) -> Any:
        raise StateUnavailableError("gone")

    monkeypatch.setattr(face.upstream.limiter.verbs.__class__, "peek", fails)
    with pytest.raises(LimitReachedError) as raised:
        face.call(Scripted(clock))
    assert raised.value.retry_after == 0.5


def test_state__raises_before_the_call__its_error_comes_out_and_nothing_is_held(
    make: Make, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    face, upstream = make("1/s", max_concurrent=2), Scripted(clock)
    monkeypatch.setattr(store, "apply", lambda *_: (_ for _ in ()).throw(StateUnavailableError("gone")))
    with pytest.raises(StateUnavailableError):
        face.call(upstream)
    monkeypatch.undo()
    assert upstream.at == []
    assert face.report is not None
    assert (face.report.outcome, face.report.why) == ("error", "StateUnavailableError: gone")
    assert face.call(upstream) == "well"


@pytest.mark.parametrize("runner", ["blocking"], indirect=True)
def test_alone__upstream_asks_for_a_pause__this_worker_keeps_it(clock: ManualClock, runner: None) -> None:
    store, primary = by_hand(clock)
    upstream = Upstream("pncp", "1000/s", retry=Retry(draw=least, state="memory://"), state=store)
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
    assert upstream.sync.get_state().as_dict()["fallback"]["why"]


def test_alone__paused_by_another_worker_before__this_one_keeps_it(clock: ManualClock, runner: None) -> None:
    store, primary = by_hand(clock)
    upstream = Upstream("pncp", "1000/s", max_wait=20, retry=False, state=store)
    assert upstream.sync.call(Scripted(clock)) == "well"
    Upstream("pncp", "1000/s", state=primary).limiter.sync.pause(30)
    moved(store)  # it hears of it
    primary.error = StateUnavailableError("gone")
    clock.advance(5)
    with pytest.raises(LimitReachedError, match="paused by the upstream") as raised:
        upstream.sync.call(Scripted(clock))
    assert 25 <= raised.value.retry_after <= 27.5
    clock.advance(10)
    scripted = Scripted(clock)
    assert upstream.sync.call(scripted) == "well"
    assert 15 <= scripted.at[0] <= 16.5


@pytest.mark.parametrize("told_alone", [True, False])
def test_alone__told_to_pause_before_the_state_is_back__everybody_pauses(
    clock: ManualClock, runner: None, *, told_alone: bool
) -> None:
    store, primary = by_hand(clock)
    upstream = Upstream("pncp", "1000/s", retry=False, state=store)
    refused, gone = Scripted(clock, Response(429, retry_after="30")), StateUnavailableError("gone")
    assert upstream.sync.call(Scripted(clock)) == "well"
    primary.error = gone if told_alone else None
    assert upstream.sync.call(refused).status_code == 429
    primary.error = gone
    with pytest.raises(LimitReachedError, match="paused by the upstream"):
        upstream.sync.call(Scripted(clock))
    primary.close()  # what it held is gone
    primary.error = None
    clock.advance(10)
    moved(store)
    assert upstream.limiter.fallback is None
    primary.error = gone  # once more, just as it is told
    with pytest.raises(LimitReachedError, match="paused by the upstream"):
        upstream.sync.call(Scripted(clock))
    primary.error = None
    moved(store)
    upstream.sync.call(Scripted(clock))  # a store in memory tells nobody what is recorded: a server does
    other = Upstream("pncp", "1000/s", retry=False, state=primary)
    with pytest.raises(LimitReachedError, match="paused by the upstream") as raised:
        other.sync.call(Scripted(clock))
    assert raised.value.retry_after == pytest.approx(20, abs=1)
    other.limiter.sync.resume()
    upstream.sync.call(Scripted(clock))
    assert other.sync.call(Scripted(clock)) == "well"  # it is told once


def test_alone__rule_accepted__reckons_with_the_workers_there_are(clock: ManualClock) -> None:
    store, _ = by_hand(clock)
    upstream = Upstream(
        "pncp",
        "1000/s",
        retry=False,
        degradation=lambda limiter: Degradation(limiter, rule="accepted"),
        state=store,
    )
    for _ in range(200):
        upstream.sync.call(Scripted(clock))
    assert upstream.parts.accepted_rate == 200 * store.workers


def test_get_state__plain__is_ready_for_json(make: Make, clock: ManualClock) -> None:
    face = make(max_concurrent=3)
    plain = face.state().as_dict()
    assert plain["name"] == "pncp"
    assert plain["breaker"]["phase"] == "closed"
    assert plain["limiter"]["fallback"] is None
    bare = make("7/s", breaker=False, state=MemoryStore(clock)).state().as_dict()
    assert (bare["breaker"], bare["calls_in_flight"], bare["limit"]) == (None, None, 7)


@pytest.mark.parametrize("degradation", [True, False])
def test_get_state__limit_changed_by_an_operator__tells_it_and_what_is_configured(
    make: Make, clock: ManualClock, degradation: bool
) -> None:
    face = make("10/s", degradation=degradation)
    face.upstream.limiter.sync.change("3/s")
    changed = face.state()
    assert (changed.limit, changed.original, changed.configured) == (3, 3, 10)
    face.upstream.limiter.sync.change(None)
    revoked = face.state()
    assert (revoked.limit, revoked.original, revoked.configured) == (10, 10, 10)


@pytest.mark.parametrize("runner", ["blocking"], indirect=True)
def test_lease__on_the_limit__calls_go_by_it(runner: None) -> None:
    with shared_store() as store:
        upstream = Upstream("leased", LimitConfig(1000, 1000, lease=True), max_wait=0, state=store)
        assert [upstream.sync.call(lambda: "well") for _ in range(20)] == ["well"] * 20
        upstream.limiter.sync.pause(60)
        with pytest.raises(LimitReachedError, match="paused"):
            upstream.sync.call(lambda: "well")
