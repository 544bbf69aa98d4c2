"""Retries, blocking and async, with the same behaviour."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

import pytest
from tests.stores.manual_heartbeat import manual_failover

from comporta import Budget, CircuitOpenError, LimitReachedError, Retry, RetryAttempt, RetryBudget
from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.flow import run
from comporta.outcome import retry_after_of
from comporta.stores.memory import MemoryStore
from comporta.stores.registry import close_stores
from comporta.testing import ManualClock


class Down(Exception):  # noqa: N818 - a name as upstreams have it
    """The upstream failed; it may have a ``retry_after``."""

    def __init__(self, retry_after: Any = None) -> None:
        super().__init__("down")
        if retry_after is not None:
            self.retry_after = retry_after


class Flaky:
    """An upstream that raises each of these errors in turn, then answers; records the times of its calls."""

    def __init__(self, clock: ManualClock, *errors: BaseException, takes: float = 0.0) -> None:
        self._clock = clock
        self._began_ns = clock.now_ns()
        self._errors = list(errors)
        self._takes = takes
        self.at: list[float] = []

    def __call__(self, answer: str = "answer", *, loud: bool = False) -> str:
        self.at.append((self._clock.now_ns() - self._began_ns) / 1e9)
        self._clock.advance(self._takes)
        if self._errors:
            raise self._errors.pop(0)
        return answer.upper() if loud else answer

    async def awaited(self, answer: str = "answer", *, loud: bool = False) -> str:
        await asyncio.sleep(0)
        return self(answer, loud=loud)


class HangingClock(ManualClock):
    """A clock whose waits never end; an event shows that one has begun."""

    def __init__(self, waiting: asyncio.Event) -> None:
        super().__init__()
        self._waiting = waiting

    async def sleep_async(self, seconds: float) -> None:
        self._waiting.set()
        await asyncio.Event().wait()


class Calls(Protocol):
    def __call__(self, retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str: ...


def call_blocking(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    return retry.sync.call(upstream, *args, **kwargs)


def call_awaiting(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    return asyncio.run(_call_async(retry, upstream, *args, **kwargs))


async def _call_async(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    return await retry.call(upstream.awaited, *args, **kwargs)


def call_decorated(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    @retry
    def fetch(*args: Any, **kwargs: Any) -> str:
        return upstream(*args, **kwargs)

    return fetch(*args, **kwargs)


def decorated_awaiting(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    @retry
    async def fetch(*args: Any, **kwargs: Any) -> str:
        return await upstream.awaited(*args, **kwargs)

    return asyncio.run(_await_fetch(fetch, *args, **kwargs))


async def _await_fetch(fetch: Callable[..., Awaitable[str]], *args: Any, **kwargs: Any) -> str:
    return await fetch(*args, **kwargs)


@pytest.fixture(params=[call_blocking, call_awaiting, call_decorated, decorated_awaiting])
def calls(request: pytest.FixtureRequest) -> Calls:
    param: Calls = request.param
    return param


def lowest(low: float, high: float) -> float:
    return low


def make_retry(clock: ManualClock, **given: Any) -> Retry:
    return Retry(**{"state": MemoryStore(clock), "draw": lowest, **given})


def test_call__succeeds_at_once__is_called_once(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock)
    assert calls(make_retry(clock), upstream, "yes", loud=True) == "YES"
    assert upstream.at == [0]


def test_call__fails_and_recovers__waits_two_and_four_seconds(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), Down())
    assert calls(make_retry(clock), upstream, "yes", loud=True) == "YES"
    assert upstream.at == [0, 2, 6]


def test_call__always_fails__raises_the_last_error_after_three_retries(
    calls: Calls, clock: ManualClock
) -> None:
    errors = [Down() for _ in range(5)]
    upstream = Flaky(clock, *errors)
    with pytest.raises(Down) as raised:
        calls(make_retry(clock), upstream)
    assert raised.value is errors[3]
    assert raised.value.__context__ is None
    assert upstream.at == [0, 2, 6, 14]


def test_call__no_retries__raises_at_once(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down())
    with pytest.raises(Down):
        calls(make_retry(clock, retries=0), upstream)
    assert upstream.at == [0]


@pytest.mark.parametrize("on", [Down, (KeyError, Down), lambda error: isinstance(error, Down)])
def test_on__another_error__is_not_retried(calls: Calls, clock: ManualClock, on: Any) -> None:
    upstream = Flaky(clock, Down(), KeyboardInterrupt() if on is None else LookupError("own error"))
    with pytest.raises(LookupError, match="own error"):
        calls(make_retry(clock, on=on), upstream)
    assert upstream.at == [0, 2]


def test_retry_after__set_on_the_error__waits_at_least_that_long(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(7.5), Down(1))
    calls(make_retry(clock), upstream)
    assert upstream.at == [0, 7.5, 11.5]


def test_retry_after__above_max_delay__raises_at_once(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(61))
    with pytest.raises(Down):
        calls(make_retry(clock), upstream)
    assert upstream.at == [0]


@pytest.mark.parametrize("value", ["soon", float("nan"), float("inf"), -5, True, [1]])
def test_retry_after__not_a_number__uses_the_backoff(clock: ManualClock, value: Any) -> None:
    upstream = Flaky(clock, Down(value))
    call_blocking(make_retry(clock), upstream)
    assert upstream.at == [0, 2]


def test_retry_after__property_that_raises__is_ignored() -> None:
    class Odd(Exception):  # noqa: N818 - see above
        @property
        def retry_after(self) -> float:
            raise RuntimeError("no")

    assert retry_after_of(Odd()) == 0.0
    assert retry_after_of(Down(3)) == 3.0


def test_circuit_open__error_of_the_call__is_not_retried(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), CircuitOpenError("pncp", "down", None, 1.0))
    with pytest.raises(CircuitOpenError):
        calls(make_retry(clock), upstream)
    assert upstream.at == [0, 2]


def test_limit_reached__error_of_the_call__waits_retry_after_and_costs_no_budget(
    calls: Calls, clock: ManualClock
) -> None:
    upstream = Flaky(clock, LimitReachedError("full", "pncp", 5.0), LimitReachedError("full", "pncp", 0.0))
    retry = make_retry(clock, budget=Budget(ratio=0, least=0))
    assert calls(retry, upstream) == "answer"
    assert upstream.at == [0, 5, 9]


def test_deadline__delay_would_pass_it__raises_instead(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, *(Down() for _ in range(5)), takes=1.0)
    with pytest.raises(Down):
        calls(make_retry(clock, deadline=7.9), upstream)
    assert upstream.at == [0, 3]  # the third would start at 8 s


def test_budget__exhausted__raises_the_calls_error_at_once(calls: Calls, clock: ManualClock) -> None:
    retry = make_retry(clock, budget=Budget(ratio=0, least=2))
    upstream = Flaky(clock, *(Down() for _ in range(5)))
    with pytest.raises(Down):
        calls(retry, upstream)
    assert upstream.at == [0, 2, 6]


def test_budget__none__does_not_bound_retries(calls: Calls, clock: ManualClock) -> None:
    retry = Retry(100, 0, jitter=(0, 0), budget=None, clock=clock)
    upstream = Flaky(clock, *(Down() for _ in range(100)))
    assert calls(retry, upstream) == "answer"


def test_budget__many_successful_calls__allow_retries_of_failed_ones(
    calls: Calls, clock: ManualClock
) -> None:
    retry = make_retry(clock, budget=Budget(ratio=0.2, least=0))
    for _ in range(9):
        calls(retry, Flaky(clock))
    assert calls(retry, Flaky(clock, Down(), Down())) == "answer"
    with pytest.raises(Down):
        calls(retry, Flaky(clock, Down()))


def test_budget__store_unreachable__retries_within_its_share(calls: Calls) -> None:
    clock = ManualClock()
    store, primary = manual_failover(clock)
    store.heartbeat.worker_count.record(5)
    primary.error = StateUnavailableError("gone")
    retry = Retry(name="pncp", state=store, draw=lowest)
    upstream = Flaky(clock, *(Down() for _ in range(5)))
    with pytest.raises(Down):
        calls(retry, upstream)
    assert upstream.at == [0, 2, 6]  # 20 % of ten calls
    store.close()


def test_budget__same_object_in_two_retries__is_shared(clock: ManualClock) -> None:
    budget = RetryBudget("pncp", MemoryStore(clock), Budget(ratio=0, least=1))
    one, other = (Retry(budget=budget, draw=lowest) for _ in range(2))
    assert one.clock is clock
    assert call_blocking(one, Flaky(clock, Down())) == "answer"
    with pytest.raises(Down):
        call_blocking(other, Flaky(clock, Down()))


def test_name__given__shares_through_the_state_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://retries")
    try:
        one, other, own = Retry(name="pncp"), Retry(name="pncp"), Retry()
        assert one.budget is not None
        assert other.budget is not None
        assert own.budget is not None
        assert one.budget.store is other.budget.store
        assert own.budget.store is not one.budget.store
    finally:
        close_stores()


def test_name__none__has_its_own_budget_on_any_state(clock: ManualClock) -> None:
    state = MemoryStore(clock)
    one, other = (Retry(state=state, budget=Budget(ratio=0, least=1), draw=lowest) for _ in range(2))
    assert one.clock is clock
    for retry in (one, other):
        assert call_blocking(retry, Flaky(clock, Down())) == "answer"
    with pytest.raises(Down):
        call_blocking(one, Flaky(clock, Down()))


def test_retry__without_budget_and_state__uses_the_monotonic_clock() -> None:
    assert Retry(budget=None).clock is MONOTONIC
    assert Retry(budget=None, base=0, jitter=(0, 0)).sync.call(Flaky(ManualClock(), Down())) == "answer"


def test_delays__for_a_loop_of_ones_own__are_those_of_the_retry(clock: ManualClock) -> None:
    retry = make_retry(clock, retries=1)
    delays = retry.delays()
    assert delays.next_delay() == 2.0
    assert delays.next_delay() is None
    assert retry.should_retry(Down())
    assert not retry.should_retry(CircuitOpenError("pncp", "down", None, 1.0))


def test_cancelled__during_the_call__is_not_caught(clock: ManualClock) -> None:
    upstream = Flaky(clock, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        call_awaiting(make_retry(clock), upstream)
    assert upstream.at == [0]


def test_cancelled__during_a_retry__is_not_caught(clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        call_awaiting(make_retry(clock), upstream)
    assert upstream.at == [0, 2]


def test_cancelled__during_the_delay__is_not_called_again() -> None:
    called = []

    async def main() -> None:
        waiting = asyncio.Event()

        async def fails() -> None:
            called.append(1)
            raise Down

        task = asyncio.create_task(Retry(clock=HangingClock(waiting)).call(fails))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert called == [1]


def test_interrupted__during_a_blocking_call__is_not_caught(clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        call_blocking(make_retry(clock), upstream)
    assert upstream.at == [0, 2]


def test_blocking__stop_iteration__is_retried_like_other_errors(clock: ManualClock) -> None:
    with pytest.raises(StopIteration):
        make_retry(clock, retries=1).sync.call(lambda: next(iter(())))


def test_error__raised__forms_no_reference_cycle(clock: ManualClock) -> None:
    retry = make_retry(clock, retries=1)
    errors = [Down(), Down()]
    kept = [weakref.ref(error) for error in errors]
    upstream = Flaky(clock, *errors)
    del errors
    gc.disable()
    try:
        with suppress(Down):
            call_blocking(retry, upstream)
        assert [error() for error in kept] == [None, None]
    finally:
        gc.enable()


def test_decorator__any_function__keeps_its_kind_and_name(clock: ManualClock) -> None:
    @make_retry(clock)
    def plain() -> None:
        """Documented."""

    @make_retry(clock)
    async def slow() -> None:
        """Documented."""

    assert not inspect.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(slow)
    assert (plain.__name__, plain.__doc__) == ("plain", "Documented.")
    plain()
    asyncio.run(slow())


class Later:
    """A callable object with an async ``__call__``."""

    def __init__(self, upstream: Flaky) -> None:
        self.upstream = upstream

    async def __call__(self, answer: str) -> str:
        return await self.upstream.awaited(answer)

    async def method(self, answer: str) -> str:
        return await self.upstream.awaited(answer)

    @staticmethod
    async def static(upstream: Flaky, answer: str) -> str:
        return await upstream.awaited(answer)


@pytest.mark.parametrize(
    "made_of",
    [
        Later,
        lambda upstream: partial(Later(upstream)),
        lambda upstream: Later(upstream).method,
        lambda upstream: partial(Later.static, upstream),
        lambda upstream: partial(partial(Later(upstream).method)),
    ],
)
def test_decorator__any_async_callable__is_retried(
    clock: ManualClock, made_of: Callable[[Flaky], Callable[[str], Awaitable[str]]]
) -> None:
    upstream = Flaky(clock, Down(), Down())
    assert asyncio.run(_await_fetch(make_retry(clock)(made_of(upstream)), "yes")) == "yes"
    assert len(upstream.at) == 3


def test_decorator__class__still_creates_objects(clock: ManualClock) -> None:
    upstream = Flaky(clock)
    assert make_retry(clock)(Later)(upstream).upstream is upstream


def test_decorator__not_callable__raises(clock: ManualClock) -> None:
    with pytest.raises(TypeError, match="a decorator needs a callable, got <classmethod"):
        make_retry(clock)(cast(Any, classmethod(cast(Any, Later))))


def test_decorator__generator_function__raises(clock: ManualClock) -> None:
    def yields() -> Iterator[int]:
        yield 1

    async def yields_later() -> AsyncGenerator[int, None]:
        yield 1

    for fn in (yields, yields_later):
        with pytest.raises(TypeError, match="a generator function cannot be decorated"):
            make_retry(clock)(fn)
    assert list(yields()) == [1]
    assert asyncio.run(yields_later().__anext__()) == 1


@pytest.mark.parametrize("on", [BaseException, (KeyError, int), "Down", None, 3])
def test_on__not_an_exception_class__raises(on: Any) -> None:
    with pytest.raises(
        TypeError, match="on must be a subclass of Exception, a tuple of them or a function of one, got"
    ):
        Retry(on=on)


def test_budget__wrong_type__raises() -> None:
    with pytest.raises(TypeError, match=r"budget must be a Budget, a RetryBudget or None, got 0\.2"):
        Retry(budget=0.2)  # type: ignore[arg-type]


def test_state__unknown_scheme__raises() -> None:
    with pytest.raises(ValueError, match="state must start with one of"):
        Retry(name="pncp", state="http://x")


def test_retry_flow__driven_directly__returns_the_last_attempts_result(clock: ManualClock) -> None:
    from comporta.retry.retry import Attempt, FailedAttempt  # noqa: PLC0415 - used in this test only

    retry = make_retry(clock)
    upstream = Flaky(clock, Down())
    assert run(retry._retry_flow(Attempt(upstream, (), {}), FailedAttempt(Down()), 0)) == "answer"


def test_decorator__plain_function_returns_a_coroutine__raises_without_a_retry() -> None:
    async def page() -> str:
        return "a page"

    def fetch() -> Any:
        return page()

    attempts: list[RetryAttempt] = []
    retry = Retry(before_attempt=attempts.append, budget=None)
    with pytest.raises(TypeError, match="a blocking call cannot await what"):
        retry.sync.call(fetch)
    assert len(attempts) == 1
