"""Retries of an upstream on results, with a least delay, hooks and the number of the attempt."""

from __future__ import annotations

from typing import Any

import pytest
from tests.upstream.conftest import Make
from tests.upstream.drivers import Response, Scripted, lowest

from comporta import LimitReachedError, Retry, RetryAttempt, current_attempt
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


def down() -> OSError:
    return OSError("no route")


@pytest.fixture
def retry_options(store: MemoryStore) -> dict[str, Any]:
    return {"draw": lowest, "state": store}


def is_none(result: object) -> bool:
    return result is None


def test_retry_if__result_wanted_again__is_retried_and_counts_as_success(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    driver = make(retry=Retry(retry_if=is_none, **retry_options), breaker=True)
    upstream = Scripted(clock, None, None)
    assert driver.call(upstream) == "well"
    assert upstream.at == [0, 2, 6]
    assert driver.upstream.breaker is not None
    assert driver.upstream.breaker.consecutive_failures == 0


def test_retry_if__no_retries_left__returns_the_last_result(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    driver = make(retry=Retry(retry_if=is_none, retries=1, **retry_options))
    upstream = Scripted(clock, None, None)
    assert driver.call(upstream) is None
    assert upstream.at == [0, 2]
    assert driver.report is not None
    assert (driver.report.outcome, driver.report.attempts) == ("ok", 2)


def test_retry_if__retried_status__adds_to_the_outcomes_that_are_retried(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    missing, broken = Response(404), Response(503)
    retry = Retry(retry_if=lambda response: response.status_code == 404, **retry_options)
    upstream = Scripted(clock, missing, broken, Response(200))
    assert make(retry=retry).call(upstream).status_code == 200
    assert upstream.at == [0, 2, 6]
    assert (missing.closed, broken.closed) == (1, 1)


def test_retry_if__raises__closes_the_response_and_releases_what_the_call_holds(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    response = Response(200)
    driver = make(retry=Retry(retry_if=lambda result: bool(1 / 0), **retry_options), max_concurrent=1)
    with pytest.raises(ZeroDivisionError):
        driver.call(Scripted(clock, response))
    assert response.closed == 1
    assert driver.state().calls_in_flight == 0


def test_min_delay__pause_is_shorter__holds(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    driver = make(retry=Retry(min_delay=4, base=0.1, **retry_options), degradation=False)
    upstream = Scripted(clock, Response(429, retry_after="1"))
    assert driver.call(upstream) == "well"
    assert upstream.at == [0, 4]


def test_hooks__attempts_of_a_call__get_name_number_wait_and_outcome(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    before: list[RetryAttempt] = []
    after: list[RetryAttempt] = []
    error, refused, numbers = down(), Response(429, retry_after="3"), []
    upstream = Scripted(clock, error, refused)
    retry = Retry(before_attempt=before.append, after_attempt=after.append, **retry_options)

    def call() -> Any:
        numbers.append(current_attempt())
        return upstream()

    assert make(retry=retry, degradation=False).call(call) == "well"
    assert numbers == [1, 2, 3]
    assert [(attempt.source, attempt.number, attempt.outcome) for attempt in before] == [
        ("pncp", 1, ""),
        ("pncp", 2, ""),
        ("pncp", 3, ""),
    ]
    assert [(attempt.waited, attempt.outcome, attempt.reason, attempt.next_delay) for attempt in after] == [
        (0, "failure", "OSError: no route", 2),
        (2, "refused", "429", pytest.approx(3)),
        (pytest.approx(3, rel=0.2), "ok", "", None),
    ]
    assert [(attempt.error, attempt.result) for attempt in after] == [
        (error, None),
        (None, refused),
        (None, "well"),
    ]


@pytest.mark.parametrize(("option", "calls"), [("before_attempt", 0), ("after_attempt", 1)])
def test_hook__raises__ends_the_call_and_releases_what_it_holds(
    make: Make, clock: ManualClock, retry_options: dict[str, Any], option: str, calls: int
) -> None:
    def reject(attempt: RetryAttempt) -> None:
        raise ValueError("stopped by the hook")

    driver = make("1/hour", retry=Retry(**{option: reject, **retry_options}), max_concurrent=1)
    response = Response(200)
    upstream = Scripted(clock, response)
    with pytest.raises(ValueError, match="stopped by the hook"):
        driver.call(upstream)
    state = driver.state()
    assert (len(upstream.at), response.closed) == (calls, calls)
    assert (state.calls_in_flight, state.limiter.tokens_available) == (0, 1 - calls)


def test_hooks__attempt_refused__are_not_called(
    make: Make, clock: ManualClock, retry_options: dict[str, Any]
) -> None:
    before: list[RetryAttempt] = []
    driver = make("1/hour", max_wait=0, retry=Retry(before_attempt=before.append, **retry_options))
    driver.call(Scripted(clock))
    with pytest.raises(LimitReachedError):
        driver.call(Scripted(clock))
    assert [attempt.number for attempt in before] == [1]


def test_current_attempt__upstream_inside_a_retry__is_that_of_the_upstream(
    make: Make, clock: ManualClock
) -> None:
    numbers: list[int] = []
    driver = make(retry=False)
    outer = Retry(clock=clock, draw=lowest)

    def inner() -> None:
        numbers.append(current_attempt())
        raise down()

    with pytest.raises(OSError, match="no route"):
        outer.sync.call(lambda: driver.call(inner))
    assert numbers == [1, 1, 1, 1]
