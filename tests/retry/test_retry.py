"""Trying again what failed, blocking and awaiting: one behaviour."""

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
from tests.stores.switchable import by_hand

from comporta import Budget, CircuitOpenError, LimitReachedError, Retry, RetryBudget
from comporta.clock import MONOTONIC
from comporta.errors import StateUnavailableError
from comporta.flow import run
from comporta.retry.retry import retry_after_of
from comporta.stores.memory import MemoryStore
from comporta.stores.urls import forget_stores
from comporta.testing import ManualClock


class Down(Exception):  # noqa: N818 - what an upstream says of itself
    """The upstream failed; it may say when to come back."""

    def __init__(self, retry_after: Any = None) -> None:
        super().__init__("down")
        if retry_after is not None:
            self.retry_after = retry_after


class Flaky:
    """An upstream that fails with each of these errors in turn, then answers; it notes when it was called."""

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


class Calls(Protocol):
    def __call__(self, retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str: ...


def blocking(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    return retry.sync.call(upstream, *args, **kwargs)


def awaiting(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    return asyncio.run(_awaited(retry, upstream, *args, **kwargs))


async def _awaited(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    return await retry.call(upstream.awaited, *args, **kwargs)


def decorated(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    @retry
    def fetch(*args: Any, **kwargs: Any) -> str:
        return upstream(*args, **kwargs)

    return fetch(*args, **kwargs)


def decorated_awaiting(retry: Retry, upstream: Flaky, *args: Any, **kwargs: Any) -> str:
    @retry
    async def fetch(*args: Any, **kwargs: Any) -> str:
        return await upstream.awaited(*args, **kwargs)

    return asyncio.run(_ran(fetch, *args, **kwargs))


async def _ran(fetch: Callable[..., Awaitable[str]], *args: Any, **kwargs: Any) -> str:
    return await fetch(*args, **kwargs)


@pytest.fixture(params=[blocking, awaiting, decorated, decorated_awaiting])
def calls(request: pytest.FixtureRequest) -> Calls:
    found: Calls = request.param
    return found


def least(low: float, high: float) -> float:
    return low


def made(clock: ManualClock, **given: Any) -> Retry:
    return Retry(**{"state": MemoryStore(clock), "draw": least, **given})


def test_call__succeeds_at_once__is_called_once(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock)
    assert calls(made(clock), upstream, "yes", loud=True) == "YES"
    assert upstream.at == [0]


def test_call__fails_and_recovers__waits_two_and_four_seconds(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), Down())
    assert calls(made(clock), upstream, "yes", loud=True) == "YES"
    assert upstream.at == [0, 2, 6]


def test_call__fails_throughout__raises_the_last_error_after_three_retries(
    calls: Calls, clock: ManualClock
) -> None:
    errors = [Down() for _ in range(5)]
    upstream = Flaky(clock, *errors)
    with pytest.raises(Down) as raised:
        calls(made(clock), upstream)
    assert raised.value is errors[3]
    assert raised.value.__context__ is None
    assert upstream.at == [0, 2, 6, 14]


def test_call__no_retries__raises_at_once(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down())
    with pytest.raises(Down):
        calls(made(clock, retries=0), upstream)
    assert upstream.at == [0]


@pytest.mark.parametrize("on", [Down, (KeyError, Down), lambda error: isinstance(error, Down)])
def test_on__another_error__is_not_tried_again(calls: Calls, clock: ManualClock, on: Any) -> None:
    upstream = Flaky(clock, Down(), KeyboardInterrupt() if on is None else LookupError("mine"))
    with pytest.raises(LookupError, match="mine"):
        calls(made(clock, on=on), upstream)
    assert upstream.at == [0, 2]


def test_call__told_when_to_come_back__waits_at_least_that_long(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(7.5), Down(1))
    calls(made(clock), upstream)
    assert upstream.at == [0, 7.5, 11.5]


def test_call__told_to_come_back_too_late__raises_at_once(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(61))
    with pytest.raises(Down):
        calls(made(clock), upstream)
    assert upstream.at == [0]


@pytest.mark.parametrize("told", ["soon", float("nan"), float("inf"), -5, True, [1]])
def test_call__told_nonsense__goes_by_the_backoff(clock: ManualClock, told: Any) -> None:
    upstream = Flaky(clock, Down(told))
    blocking(made(clock), upstream)
    assert upstream.at == [0, 2]


def test_retry_after__a_property_that_fails__is_no_answer() -> None:
    class Odd(Exception):  # noqa: N818 - see above
        @property
        def retry_after(self) -> float:
            raise RuntimeError("no")

    assert retry_after_of(Odd()) == 0.0
    assert retry_after_of(Down(3)) == 3.0


def test_circuit_open__nothing_is_tried_against_it(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), CircuitOpenError("pncp", "down", None, 1.0))
    with pytest.raises(CircuitOpenError):
        calls(made(clock), upstream)
    assert upstream.at == [0, 2]


def test_limit_reached__waits_as_told_and_costs_no_budget(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, LimitReachedError("full", "pncp", 5.0), LimitReachedError("full", "pncp", 0.0))
    retry = made(clock, budget=Budget(ratio=0, least=0))
    assert calls(retry, upstream) == "answer"
    assert upstream.at == [0, 5, 9]


def test_deadline__a_wait_would_pass_it__raises_instead(calls: Calls, clock: ManualClock) -> None:
    upstream = Flaky(clock, *(Down() for _ in range(5)), takes=1.0)
    with pytest.raises(Down):
        calls(made(clock, deadline=7.9), upstream)
    assert upstream.at == [0, 3]  # the third would begin at 8 s


def test_budget__exhausted__raises_the_error_itself_at_once(calls: Calls, clock: ManualClock) -> None:
    retry = made(clock, budget=Budget(ratio=0, least=2))
    upstream = Flaky(clock, *(Down() for _ in range(5)))
    with pytest.raises(Down):
        calls(retry, upstream)
    assert upstream.at == [0, 2, 6]


def test_budget__none__sets_no_bound(calls: Calls, clock: ManualClock) -> None:
    retry = Retry(100, 0, jitter=(0, 0), budget=None, clock=clock)
    upstream = Flaky(clock, *(Down() for _ in range(100)))
    assert calls(retry, upstream) == "answer"


def test_budget__many_calls_that_succeed__pay_for_those_that_fail(calls: Calls, clock: ManualClock) -> None:
    retry = made(clock, budget=Budget(ratio=0.2, least=0))
    for _ in range(9):
        calls(retry, Flaky(clock))
    assert calls(retry, Flaky(clock, Down(), Down())) == "answer"
    with pytest.raises(Down):
        calls(retry, Flaky(clock, Down()))


def test_budget__state_out_of_reach__retries_within_its_share(calls: Calls) -> None:
    clock = ManualClock()
    store, primary = by_hand(clock)
    store.keeper.census.heard(5)
    primary.error = StateUnavailableError("gone")
    retry = Retry(name="pncp", state=store, draw=least)
    upstream = Flaky(clock, *(Down() for _ in range(5)))
    with pytest.raises(Down):
        calls(retry, upstream)
    assert upstream.at == [0, 2, 6]  # two of ten
    store.close()


def test_budget__given__is_shared_by_all_it_is_given_to(clock: ManualClock) -> None:
    budget = RetryBudget("pncp", MemoryStore(clock), Budget(ratio=0, least=1))
    one, other = (Retry(budget=budget, draw=least) for _ in range(2))
    assert one.clock is clock
    assert blocking(one, Flaky(clock, Down())) == "answer"
    with pytest.raises(Down):
        blocking(other, Flaky(clock, Down()))


def test_name__given__shares_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPORTA_STATE", "memory://retries")
    try:
        one, other, own = Retry(name="pncp"), Retry(name="pncp"), Retry()
        assert one.budget is not None
        assert other.budget is not None
        assert own.budget is not None
        assert one.budget.store is other.budget.store
        assert own.budget.store is not one.budget.store
    finally:
        forget_stores()


def test_name__none__is_a_budget_of_its_own_on_any_state(clock: ManualClock) -> None:
    state = MemoryStore(clock)
    one, other = (Retry(state=state, budget=Budget(ratio=0, least=1), draw=least) for _ in range(2))
    assert one.clock is clock
    for retry in (one, other):
        assert blocking(retry, Flaky(clock, Down())) == "answer"
    with pytest.raises(Down):
        blocking(one, Flaky(clock, Down()))


def test_retry__without_budget_and_state__goes_by_the_machines_clock() -> None:
    assert Retry(budget=None).clock is MONOTONIC
    assert Retry(budget=None, base=0, jitter=(0, 0)).sync.call(Flaky(ManualClock(), Down())) == "answer"


def test_delays__for_whoever_makes_the_tries__are_those_of_the_retry(clock: ManualClock) -> None:
    retry = made(clock, retries=1)
    delays = retry.delays()
    assert delays.next_delay() == 2.0
    assert delays.next_delay() is None
    assert retry.wants(Down())
    assert not retry.wants(CircuitOpenError("pncp", "down", None, 1.0))


def test_cancelled__while_calling__goes_straight_through(clock: ManualClock) -> None:
    upstream = Flaky(clock, asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        awaiting(made(clock), upstream)
    assert upstream.at == [0]


def test_cancelled__in_a_later_try__goes_straight_through(clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        awaiting(made(clock), upstream)
    assert upstream.at == [0, 2]


def test_cancelled__while_waiting__is_not_called_again() -> None:
    called = []

    async def main() -> None:
        began = asyncio.Event()

        async def fails() -> None:
            called.append(1)
            began.set()
            raise Down

        task = asyncio.create_task(Retry(base=600).call(fails))
        await began.wait()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert called == [1]


def test_interrupted__while_blocking__goes_straight_through(clock: ManualClock) -> None:
    upstream = Flaky(clock, Down(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        blocking(made(clock), upstream)
    assert upstream.at == [0, 2]


def test_blocking__the_end_of_an_iterator__is_an_error_like_others(clock: ManualClock) -> None:
    with pytest.raises(StopIteration):
        made(clock, retries=1).sync.call(lambda: next(iter(())))


def test_error__raised__is_not_kept_alive_by_itself(clock: ManualClock) -> None:
    retry = made(clock, retries=1)
    errors = [Down(), Down()]
    kept = [weakref.ref(error) for error in errors]
    upstream = Flaky(clock, *errors)
    del errors
    gc.disable()
    try:
        with suppress(Down):
            blocking(retry, upstream)
        assert [error() for error in kept] == [None, None]
    finally:
        gc.enable()


def test_decorator__any_function__keeps_its_nature_and_name(clock: ManualClock) -> None:
    @made(clock)
    def plain() -> None:
        """Say so."""

    @made(clock)
    async def slow() -> None:
        """Say so."""

    assert not inspect.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(slow)
    assert (plain.__name__, plain.__doc__) == ("plain", "Say so.")
    plain()
    asyncio.run(slow())


class Later:
    """An object that is called and awaited, as a client library may have it."""

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
def test_decorator__whatever_is_awaited__is_tried_again(
    clock: ManualClock, made_of: Callable[[Flaky], Callable[[str], Awaitable[str]]]
) -> None:
    upstream = Flaky(clock, Down(), Down())
    assert asyncio.run(_ran(made(clock)(made_of(upstream)), "yes")) == "yes"
    assert len(upstream.at) == 3


def test_decorator__a_class__makes_its_objects(clock: ManualClock) -> None:
    upstream = Flaky(clock)
    assert made(clock)(Later)(upstream).upstream is upstream


def test_decorator__what_cannot_be_called__is_refused(clock: ManualClock) -> None:
    with pytest.raises(TypeError, match="only what can be called can be decorated, got <classmethod"):
        made(clock)(cast(Any, classmethod(cast(Any, Later))))


def test_decorator__what_yields__is_refused(clock: ManualClock) -> None:
    def yields() -> Iterator[int]:
        yield 1

    async def yields_later() -> AsyncGenerator[int, None]:
        yield 1

    for fn in (yields, yields_later):
        with pytest.raises(TypeError, match="what yields cannot be decorated"):
            made(clock)(fn)
    assert list(yields()) == [1]
    assert asyncio.run(yields_later().__anext__()) == 1


@pytest.mark.parametrize("on", [BaseException, (KeyError, int), "Down", None, 3])
def test_on__no_error__is_refused(on: Any) -> None:
    with pytest.raises(TypeError, match="on must be subclasses of Exception or a function of one, got"):
        Retry(on=on)


def test_budget__no_budget__is_refused() -> None:
    with pytest.raises(TypeError, match=r"budget must be a Budget, a RetryBudget or None, got 0\.2"):
        Retry(budget=0.2)  # type: ignore[arg-type]


def test_state__of_unknown_scheme__is_refused() -> None:
    with pytest.raises(ValueError, match="state must start with one of"):
        Retry(name="pncp", state="http://x")


def test_flow__used_by_itself__answers_with_what_the_last_try_did(clock: ManualClock) -> None:
    from comporta.retry.retry import Attempt, Failed  # noqa: PLC0415 - for whoever composes

    retry = made(clock)
    upstream = Flaky(clock, Down())
    assert run(retry.retrying(Attempt(upstream, (), {}), Failed(Down()), 0)) == "answer"
