"""Retries on results, hooks around attempts, and the number of an attempt: blocking and async alike."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any

import pytest

from comporta import Budget, Retry, RetryAttempt, current_attempt
from comporta.retry.attempts import LISTENERS_MAX, NumberedAttempt, listen_to_attempts, listeners
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock


class Source:
    """Returns or raises each of these answers in turn, then 7; records time and number of each attempt."""

    def __init__(self, clock: ManualClock, *answers: Any) -> None:
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._answers = list(answers)
        self.at: list[float] = []
        self.numbers: list[int] = []

    def __call__(self) -> Any:
        self.at.append((self._clock.now_ns() - self._began_ns) / 1e9)
        self.numbers.append(current_attempt())
        answer = self._answers.pop(0) if self._answers else 7
        if isinstance(answer, Exception):
            raise answer
        return answer


Call = Callable[[Retry, Callable[[], Any]], Any]


@pytest.fixture(params=["call", "decorator"])
def call(request: pytest.FixtureRequest, runner: asyncio.Runner | None) -> Call:
    """Return a function that calls another through a retry: a plain one, or a coroutine function."""
    is_decorator = request.param == "decorator"

    def make_call(retry: Retry, function: Callable[[], Any]) -> Any:
        if runner is None:
            return retry(function)() if is_decorator else retry.sync.call(function)

        async def awaited() -> Any:
            await asyncio.sleep(0)
            return function()

        return runner.run(retry(awaited)() if is_decorator else retry.call(awaited))

    return make_call


def make_retry(clock: ManualClock, **given: Any) -> Retry:
    return Retry(**{"state": MemoryStore(clock), "draw": lambda low, high: low, **given})


def is_none(result: object) -> bool:
    return result is None


def test_retry_if__result_wanted_again__is_retried_after_the_usual_delays(
    call: Call, clock: ManualClock
) -> None:
    source = Source(clock, None, None)
    assert call(make_retry(clock, retry_if=is_none), source) == 7
    assert source.at == [0, 2, 6]


def test_retry_if__no_retries_left__returns_the_last_result(call: Call, clock: ManualClock) -> None:
    source = Source(clock, *[None] * 9)
    assert call(make_retry(clock, retry_if=is_none), source) is None
    assert source.at == [0, 2, 6, 14]


def test_retry_if__results_and_errors__are_combined_with_on(call: Call, clock: ManualClock) -> None:
    source = Source(clock, None, OSError("no route"), None, KeyError("own error"))
    with pytest.raises(KeyError, match="own error"):
        call(make_retry(clock, retry_if=is_none, on=OSError), source)
    assert source.at == [0, 2, 6, 14]


def test_retry_if__not_given__returns_every_result(call: Call, clock: ManualClock) -> None:
    retry, source = make_retry(clock), Source(clock, None)
    assert call(retry, source) is None
    assert source.at == [0]
    assert not retry.should_retry_result(None)
    assert make_retry(clock, retry_if=is_none).should_retry_result(None)


def test_retry_if__result_with_retry_after__waits_at_least_that_long(call: Call, clock: ManualClock) -> None:
    class Busy:
        retry_after = 9.0

    source = Source(clock, Busy())
    assert call(make_retry(clock, retry_if=lambda result: isinstance(result, Busy)), source) == 7
    assert source.at == [0, 9]


def test_retry_if__budget_used_up__returns_the_result(call: Call, clock: ManualClock) -> None:
    retry = make_retry(clock, retry_if=is_none, budget=Budget(ratio=0, least=1))
    assert call(retry, Source(clock, None, None)) is None


def test_retry_if__raises__ends_the_call_with_that_error(call: Call, clock: ManualClock) -> None:
    source = Source(clock, 1)
    with pytest.raises(ZeroDivisionError):
        call(make_retry(clock, retry_if=lambda result: result / 0), source)
    assert source.at == [0]


def test_hooks__attempts_until_success__get_number_wait_and_outcome(call: Call, clock: ManualClock) -> None:
    before: list[RetryAttempt] = []
    after: list[RetryAttempt] = []
    error = OSError("no route")
    retry = make_retry(clock, retry_if=is_none, before_attempt=before.append, after_attempt=after.append)
    assert call(retry, Source(clock, error, None)) == 7
    assert before == [RetryAttempt(1), RetryAttempt(2, waited=2), RetryAttempt(3, waited=4)]
    assert after == [
        RetryAttempt(1, "", 0, "failure", "OSError", error, None, next_delay=2),
        RetryAttempt(2, "", 2, "ok", "", None, None, next_delay=4),
        RetryAttempt(3, "", 4, "ok", "", None, 7, next_delay=None),
    ]


def test_hooks__call_that_fails_for_good__are_called_after_its_last_attempt(
    call: Call, clock: ManualClock
) -> None:
    after: list[RetryAttempt] = []
    with pytest.raises(OSError, match="no route"):
        call(
            make_retry(clock, retries=1, after_attempt=after.append),
            Source(clock, *[OSError("no route")] * 2),
        )
    assert [(attempt.number, attempt.next_delay) for attempt in after] == [(1, 2), (2, None)]


def test_before_attempt__raises__ends_the_call_without_the_attempt(call: Call, clock: ManualClock) -> None:
    def stop_retries(attempt: RetryAttempt) -> None:
        if attempt.number == 2:
            raise ValueError("stopped by the hook")

    source = Source(clock, OSError("no route"))
    with pytest.raises(ValueError, match="stopped by the hook"):
        call(make_retry(clock, before_attempt=stop_retries), source)
    assert source.at == [0]


def test_after_attempt__raises__ends_the_call_with_that_error(call: Call, clock: ManualClock) -> None:
    def reject(attempt: RetryAttempt) -> None:
        raise ValueError(f"attempt {attempt.number} was {attempt.outcome}")

    source = Source(clock)
    with pytest.raises(ValueError, match="attempt 1 was ok"):
        call(make_retry(clock, after_attempt=reject), source)
    assert source.at == [0]


@pytest.mark.parametrize("options", [{}, {"retry_if": is_none}])
def test_current_attempt__in_the_called_function__counts_from_one(
    call: Call, clock: ManualClock, options: dict[str, Any]
) -> None:
    source = Source(clock, OSError("no route"), OSError("no route"))
    call(make_retry(clock, **options), source)
    assert source.numbers == [1, 2, 3]
    assert current_attempt() == 1


def test_current_attempt__retry_inside_a_retry__is_that_of_the_inner_one(
    call: Call, clock: ManualClock
) -> None:
    inner, outer = Source(clock, *[OSError("no route")] * 3), []
    inner_retry = make_retry(clock, retries=1)

    def nested() -> Any:
        outer.append(current_attempt())
        try:
            return inner_retry.sync.call(inner)
        finally:
            outer.append(current_attempt())

    call(make_retry(clock), nested)
    assert inner.numbers == [1, 2, 1, 2]
    assert outer == [1, 1, 2, 2]


def test_current_attempt__coroutine_closed_in_another_context__stays_quiet() -> None:
    class Endless:
        def block(self) -> None: ...

        async def wait(self) -> None:
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        waiting = NumberedAttempt(Endless(), 2).wait()
        Context().run(waiting.send, None)
        waiting.close()
        assert current_attempt() == 1

    asyncio.run(main())


@pytest.mark.parametrize("option", ["retry_if", "before_attempt", "after_attempt"])
def test_option__not_a_plain_function__raises(option: str) -> None:
    async def later(_: object) -> bool:
        return True

    class Later:
        async def __call__(self, _: object) -> bool:
            return True

    with pytest.raises(TypeError, match=f"{option} must be a function, got 5"):
        Retry(**{option: 5})  # type: ignore[arg-type]
    for function in (later, Later()):
        with pytest.raises(TypeError, match=f"{option} must be a plain function, got the coroutine function"):
            Retry(**{option: function})  # type: ignore[arg-type]


def test_listener__every_attempt_of_the_process__is_called_until_stopped(
    call: Call, clock: ManualClock
) -> None:
    received: list[RetryAttempt] = []

    def failing(attempt: RetryAttempt) -> None:
        raise ValueError("a listener's own error")

    stops = [listen_to_attempts(failing), listen_to_attempts(received.append)]
    try:
        assert call(make_retry(clock), Source(clock, OSError("no route"))) == 7
    finally:
        for stop in [*stops, *stops]:
            stop()
    call(make_retry(clock), Source(clock))
    assert [(attempt.number, attempt.outcome) for attempt in received] == [(1, "failure"), (2, "ok")]


def test_listener__too_many__raises() -> None:
    stops = [listen_to_attempts(print) for _ in range(LISTENERS_MAX)]
    try:
        with pytest.raises(ValueError, match="listeners must be at most 100"):
            listen_to_attempts(print)
    finally:
        for stop in stops:
            stop()
    assert listeners == []
