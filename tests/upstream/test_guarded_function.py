"""Decorated functions: their wrappers do what ``call`` does, whether or not a call needs an object."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.upstream.conftest import Make
from tests.upstream.drivers import Driver, Response, Scripted, lowest

from comporta import BreakerConfig, CallReport, Outcome, Retry, StateUnavailableError, Upstream, last_call
from comporta.metrics import InMemoryMetrics
from comporta.stores.memory import MemoryStore
from comporta.testing import ManualClock
from comporta.upstream.fast_path import FastPath

Situation = tuple[dict[str, Any], tuple[Any, ...]]


class NotFoundError(Exception):
    """An error as HTTP clients raise it."""

    response = Response(404)


def raising_classifier(result: object, error: BaseException | None) -> Outcome:
    raise RuntimeError("the classifier failed")


SITUATIONS: dict[str, Situation] = {
    "a success": ({}, ("fine",)),
    "a response": ({}, (Response(200),)),
    "an answer raised as an error": ({}, (NotFoundError("page"),)),
    "a failure that is retried": ({}, (ConnectionError("reset"), Response(503), "fine")),
    "failures until the retries end": ({}, (OSError("a"), OSError("b"), OSError("c"), OSError("d"))),
    "a mistake of the program": ({}, (TypeError("no"),)),
    "a refusal by the upstream": ({}, (Response(429), "fine")),
    "no retry": ({"retry": False}, (Response(500),)),
    "no breaker": ({"breaker": False}, (ConnectionError("reset"), "fine")),
    "no time-out": ({"timeout": None}, (ConnectionError("reset"), "fine")),
    "a permit": ({"max_concurrent": 1}, (ConnectionError("reset"), "fine")),
    "a classifier of the user's": (
        {"classify": lambda result, error: Outcome("ok" if error is None else "failure")},
        ("fine", ConnectionError("reset")),
    ),
    "a classifier that raises": ({"classify": raising_classifier}, ("fine", OSError("reset"))),
    "an interruption": ({}, (KeyboardInterrupt(), "fine")),
}


def call_five_times(
    driver: Driver, how: Callable[..., Any], answers: tuple[Any, ...], clock: ManualClock
) -> Any:
    """Make five calls; return the result and the report of each, and the state afterwards."""
    upstream, seen = Scripted(clock, "fine", *answers), []  # the first call asks the store about the circuit
    for _ in range(5):
        try:
            answer = repr(how(upstream))
        except BaseException as error:
            answer = f"raised {error!r}"
        assert driver.report is not None
        seen.append((answer, replace(driver.report, took=0.0)))
    stats, state = driver.upstream.limiter.sync.stats(), driver.state()
    in_flight = state.calls_in_flight
    circuit = None if driver.upstream.breaker is None else driver.upstream.breaker.sync.get_state().failures
    return upstream.at, seen, stats.requests_last_minute, circuit, in_flight


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
def test_guard__any_situation__does_what_call_does(
    situation: Situation, make: Make, clock: ManualClock, metrics: InMemoryMetrics
) -> None:
    options, answers = situation
    results = []
    for how in ("call", "guarded"):
        store = MemoryStore(clock)
        retry = {"retry": Retry(draw=lowest, state=store), **options}
        driver = make(state=store, **retry)
        results.append(call_five_times(driver, getattr(driver, how), answers, clock))
    assert results[0] == results[1]


def test_guard__nested_calls__the_report_is_that_of_the_last_call_to_end(store: MemoryStore) -> None:
    seen: list[CallReport | None] = []

    @Upstream("inner", "1000/s", state=store).guard
    def inner() -> str:
        return "inner"

    def call() -> str:
        seen.append(last_call())
        return inner()

    outer = Upstream("outer", "1000/s", state=store).guard(call)
    for _ in range(2):
        assert outer() == "inner"
        report = last_call()
        assert report is not None
        assert (report.source, report.outcome, report.attempts) == ("outer", "ok", 1)
        assert seen.pop() is report


def test_guard__store_fails_before_the_call__raises_its_error(store: MemoryStore) -> None:
    def unavailable(key: object, cost: int) -> int:
        raise StateUnavailableError("gone")

    upstream = Upstream("pncp", "10/s", state=store, retry=False)
    policies = upstream._policies
    object.__setattr__(policies, "try_acquire", unavailable)
    object.__setattr__(policies, "fast_path", FastPath.for_policies(policies))
    with pytest.raises(StateUnavailableError):
        upstream.guard(lambda: "fine")()
    report = last_call()
    assert report is not None
    assert (report.outcome, report.attempts) == ("error", 0)


def test_guard__cancelled_during_the_call__counts_as_neither_and_holds_nothing(store: MemoryStore) -> None:
    upstream = Upstream("pncp", "10/s", state=store)

    started = asyncio.Event()
    reports: list[CallReport | None] = []

    @upstream.guard
    async def forever() -> None:
        reports.append(last_call())
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        await upstream.call(asyncio.sleep, 0)
        task = asyncio.create_task(forever())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    [report] = reports
    assert report is not None
    assert (report.outcome, report.attempts) == ("cancelled", 1)
    assert upstream.breaker is not None
    assert upstream.breaker.sync.get_state().failures == 0


def test_guard__call_takes_too_long__ends_at_the_timeout(store: MemoryStore) -> None:
    upstream = Upstream("pncp", "10/s", timeout=0.01, retry=False, state=store)

    @upstream.guard
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await forever()

    asyncio.run(main())
    assert upstream.breaker is not None
    assert upstream.breaker.sync.get_state().failures == 2


def test_guard__awaited_without_an_event_loop__says_so_and_counts_for_nothing(store: MemoryStore) -> None:
    upstream = Upstream("pncp", "10/s", state=store)

    @upstream.guard
    async def fine() -> str:
        return "fine"

    assert asyncio.run(fine()) == "fine"
    with pytest.raises(RuntimeError, match="event loop"):
        fine().send(None)
    assert upstream.breaker is not None
    assert upstream.breaker.sync.get_state().failures == 0


def test_guard__error_is_raised__is_not_referenced_afterwards(store: MemoryStore) -> None:
    class FaultError(Exception):
        pass

    def fail() -> None:
        raise FaultError

    call = Upstream("pncp", "10/s", retry=False, state=store).guard(fail)
    gc.disable()
    try:
        for _ in range(2):
            with pytest.raises(FaultError) as raised:
                call()
            fault = weakref.ref(raised.value)
            del raised
            assert fault() is None
    finally:
        gc.enable()


class Pending:
    """What ``aiohttp.ClientSession.get`` or a stub of grpc.aio returns: it can be awaited later."""

    def __await__(self) -> Generator[Any, Any, str]:
        yield
        return "a page"


def fetch() -> Any:
    async def page() -> str:
        return "a page"

    return page()


@pytest.mark.parametrize("timeout", [None, 30])
def test_call__awaited_blocking_function__says_so_and_counts_for_nothing(timeout: float | None) -> None:
    breaker = BreakerConfig(threshold=1)
    upstream = Upstream("blocking", "1000/s", breaker=breaker, timeout=timeout, state="memory://")
    assert upstream.breaker is not None
    with pytest.raises(TypeError, match="cannot await what <class 'str'> returned, '7': pass an async"):
        asyncio.run(upstream.call(str, 7))  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(TypeError, match="unexpected keyword"):
        asyncio.run(upstream.call(asyncio.sleep, 0, wrong=1))  # type: ignore[arg-type]  # another mistake
    with pytest.raises(TypeError, match="can only concatenate"):
        asyncio.run(upstream.call(_add_to_text))
    assert not upstream.breaker.is_degraded


async def _add_to_text() -> int:
    return "1" + 1  # type: ignore[operator,no-any-return]  # the mistake under test


@pytest.mark.parametrize("function", [fetch, Pending])
@pytest.mark.parametrize("max_concurrent", [None, 2])
def test_guard__plain_function_returns_an_awaitable__says_so_and_counts_for_nothing(
    function: Callable[[], Any], max_concurrent: int | None
) -> None:
    breaker = BreakerConfig(threshold=1)
    upstream = Upstream("later", "1000/s", breaker=breaker, max_concurrent=max_concurrent, state="memory://")
    assert upstream.breaker is not None
    for call in (upstream.guard(function), partial(upstream.sync.call, function)):
        with pytest.raises(TypeError, match=r"cannot await what <.*> returned, <.*>: decorate an async"):
            call()
        report = last_call()
        assert report is not None
        assert (report.outcome, report.attempts) == ("neither", 1)
    assert upstream.breaker.phase == "closed"
