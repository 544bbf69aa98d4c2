"""The public class of retries: ``await retry.call(fn, ...)``, ``retry.sync.call(fn, ...)`` or ``@retry``.

A call that succeeds at its first attempt is only counted; the flow starts only after a failure, or if there
is a hook or a ``retry_if``. A call that finally fails raises the exception of its last attempt itself, not a
wrapper around it, or returns its last result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from comporta.clock import MONOTONIC, Clock
from comporta.errors import CircuitOpenError, RefusedError
from comporta.flow import Effect, Flow, run, run_async
from comporta.jitter import uniform
from comporta.outcome import retry_after_of
from comporta.retry.attempts import (
    AttemptHook,
    AttemptHooks,
    NumberedAttempt,
    RetryAttempt,
    attempt_number,
    listeners,
)
from comporta.retry.backoff import Backoff, Delays, Draw, Jitter
from comporta.retry.budget import UNNAMED, Budget, RetryBudget
from comporta.signatures import is_async_callable, require_plain_function, require_result
from comporta.stores.base import Store
from comporta.stores.effects import Sleep
from comporta.stores.memory import MemoryStore
from comporta.stores.registry import default_url, resolve_store
from comporta.validators import ErrorFilter, require_error_filter

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class FailedAttempt:
    """The result of an attempt that raised an exception.

    It is returned, not raised, because a generator cannot propagate every exception: it turns a
    ``StopIteration`` into a ``RuntimeError``. A subclass with ``is_final`` is never retried.
    """

    __slots__ = ("error",)

    is_final = False

    def __init__(self, error: Exception) -> None:
        self.error = error

    def raise_error(self) -> NoReturn:
        """Raise the error, once, and drop the reference to it.

        The error's traceback references the frames that reference this object; without the ``del`` the cycle
        would live until the next garbage collection.
        """
        error = self.error
        del self.error
        try:
            raise error
        finally:
            del error


class Attempt:
    """Effect: call the user's function. An exception becomes the result; a cancellation is raised."""

    __slots__ = ("_args", "_fn", "_kwargs")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn = fn
        self._args = args
        self._kwargs = kwargs

    def block(self) -> Any:
        """Call the function."""
        try:
            result = self._fn(*self._args, **self._kwargs)
        except Exception as error:
            return FailedAttempt(error)
        require_result(self._fn, result)
        return result

    async def wait(self) -> Any:
        """Call the function and await its result."""
        try:
            return await self._fn(*self._args, **self._kwargs)
        except Exception as error:
            return FailedAttempt(error)


class Retry:
    """Calls a function again if it fails: by default 3 times, after 2, 4 and 8 s plus up to 0.5 s of jitter.

    ``on`` selects the errors to retry: an exception class, a tuple of them, or a function of the exception.
    ``retry_if`` is a function that returns true for results to retry; without it no result is retried. When
    no attempts are left, the call raises its last error or returns its last result.

    ``before_attempt`` and ``after_attempt`` are plain functions of a :class:`RetryAttempt`, called around
    each attempt of blocking and async calls alike. An exception of a hook ends the call and is raised from
    it. The called function reads the number of its attempt from :func:`comporta.current_attempt`.

    No delay is shorter than ``min_delay`` or longer than ``max_delay``. ``deadline`` bounds the whole call,
    in seconds: no attempt starts after it, but one in progress is not interrupted. If an exception or a
    result has a ``retry_after``, the delay is at least that long; if it is above ``max_delay``, the call
    gives up. A :class:`comporta.CircuitOpenError` is never retried.

    ``budget`` bounds the retries of all calls together; ``None`` means no bound. With a ``name``, all workers
    that use the same name and ``state`` (by default, the state that the environment names) share the budget.
    Without a name the budget belongs to this object.
    """

    backoff: Backoff
    """The number of retries and the delays before them."""

    budget: RetryBudget | None
    """The budget that bounds the retries; ``None``: no bound."""

    clock: Clock
    """The clock for delays and the deadline."""

    sync: SyncRetry
    """The same retry for blocking code."""

    def __init__(
        self,
        retries: int = 3,
        base: float = 2.0,
        factor: float = 2.0,
        jitter: Jitter = (0.0, 0.5),
        *,
        min_delay: float = 0.0,
        max_delay: float = 60.0,
        deadline: float | None = None,
        on: ErrorFilter = Exception,
        retry_if: Callable[[Any], bool] | None = None,
        before_attempt: AttemptHook | None = None,
        after_attempt: AttemptHook | None = None,
        budget: RetryBudget | Budget | None = Budget(),  # noqa: B008 - frozen
        name: str | None = None,
        state: str | Store | None = None,
        clock: Clock | None = None,
        draw: Draw = uniform,
    ) -> None:
        self.backoff = Backoff(retries, base, factor, jitter, max_delay, deadline, min_delay)
        self.budget = _budget_of(budget, name, state)
        self.clock = clock or (self.budget.store.clock if self.budget else MONOTONIC)
        if retry_if is not None:
            require_plain_function("retry_if", retry_if)
        self._is_retryable = require_error_filter("on", on)
        self._retry_if = retry_if
        self._hooks = AttemptHooks(before_attempt, after_attempt)
        self._is_plain = retry_if is None and self._hooks.is_empty
        self._draw = draw
        self._count_call = self.budget._count_call if self.budget else _count_nothing
        self._start_ns = _no_start if deadline is None else self.clock.now_ns
        self.sync = SyncRetry(self)

    def delays(self) -> Delays:
        """Return the delays of one call, for a loop of your own."""
        return self.backoff.delays(self._draw)

    def should_retry(self, error: Exception) -> bool:
        """Return whether a call that raised ``error`` is retried, as long as delays are left."""
        return not isinstance(error, CircuitOpenError) and bool(self._is_retryable(error))

    def should_retry_result(self, result: object) -> bool:
        """Return whether a call that returned ``result`` is retried, as long as delays are left."""
        return self._retry_if is not None and bool(self._retry_if(result))

    async def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call and await ``fn``, and retry if it fails."""
        self._count_call()
        started_ns = self._start_ns()
        if not self._is_plain or listeners or attempt_number.get() != 1:
            flow = self._call_flow(Attempt(fn, args, kwargs), started_ns)
            return cast(T, _unwrap(await run_async(flow)))
        try:
            return await fn(*args, **kwargs)
        except Exception as error:
            flow = self._retry_flow(Attempt(fn, args, kwargs), FailedAttempt(error), started_ns)
        return cast(T, _unwrap(await run_async(flow)))

    def _call_sync(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn``, and retry if it fails, blocking; users call ``sync.call``."""
        self._count_call()
        started_ns = self._start_ns()
        if not self._is_plain or listeners or attempt_number.get() != 1:
            return cast(T, _unwrap(run(self._call_flow(Attempt(fn, args, kwargs), started_ns))))
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            flow = self._retry_flow(Attempt(fn, args, kwargs), FailedAttempt(error), started_ns)
        return cast(T, _unwrap(run(flow)))

    def _call_flow(self, attempt: Effect, started_ns: int) -> Flow[Any]:
        """Make the first attempt, then retry."""
        started = self._hooks.start(1, "", 0.0)
        answer = yield NumberedAttempt(attempt, 1)
        return (yield from self._retry_flow(attempt, answer, started_ns, started))

    def _retry_flow(
        self, attempt: Effect, answer: Any, started_ns: int, started: RetryAttempt | None = None
    ) -> Flow[Any]:
        """Retry after a first attempt; return the result of the last attempt, or ``FailedAttempt``.

        ``attempt`` is an effect whose result is ``FailedAttempt`` if it fails. Without ``started``, the first
        attempt is not reported to hooks, because there were none.
        """
        delays, number = self.delays(), 1
        while True:
            delay = yield from self._next_delay_flow(delays, answer, started_ns)
            if started is not None:
                self._hooks.finish(started, next_delay=delay, **_end_of(answer))
            if delay is None:
                return answer
            yield Sleep(self.clock, delay)
            number += 1
            started = self._hooks.start(number, "", delay)
            answer = yield NumberedAttempt(attempt, number)

    def _next_delay_flow(self, delays: Delays, answer: Any, started_ns: int) -> Flow[float | None]:
        """Return the delay before the next attempt in seconds; ``None`` if this answer is the final one."""
        error = answer.error if isinstance(answer, FailedAttempt) else None
        if error is not None and answer.is_final:
            return None
        if not (self.should_retry_result(answer) if error is None else self.should_retry(error)):
            return None
        elapsed = (self.clock.now_ns() - started_ns) / 1e9 if self.backoff.deadline else 0.0
        delay = delays.next_delay(retry_after_of(answer if error is None else error), elapsed)
        return delay if delay is not None and (yield from self._withdraw_flow(error)) else None

    def _withdraw_flow(self, error: Exception | None) -> Flow[bool]:
        """Withdraw a retry from the budget; a refused call did not reach the upstream and costs none."""
        if self.budget is None or isinstance(error, RefusedError):
            return True
        return (yield from self.budget._withdraw_flow())

    def __call__(self, fn: F) -> F:
        """Decorate a function or a coroutine function."""
        if is_async_callable(fn):

            @wraps(fn)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                return await self.call(fn, *args, **kwargs)

            return cast(F, call_async)

        @wraps(fn)
        def call_sync(*args: Any, **kwargs: Any) -> Any:
            return self._call_sync(fn, *args, **kwargs)

        return cast(F, call_sync)


class SyncRetry:
    """A retry for blocking code: ``retry.sync.call(fn, ...)``."""

    __slots__ = ("call",)

    def __init__(self, retry: Retry) -> None:
        self.call = retry._call_sync


def _unwrap(result: Any) -> Any:
    if type(result) is FailedAttempt:
        result.raise_error()
    return result


def _end_of(answer: Any) -> dict[str, Any]:
    """Return how an attempt ended, as fields of ``RetryAttempt``."""
    if not isinstance(answer, FailedAttempt):
        return {"outcome": "ok", "result": answer}
    return {"outcome": "failure", "error": answer.error, "reason": type(answer.error).__name__}


def _budget_of(
    budget: RetryBudget | Budget | None, name: str | None, state: str | Store | None
) -> RetryBudget | None:
    if budget is None or isinstance(budget, RetryBudget):
        return budget
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, a RetryBudget or None, got {budget!r:.50}")
    if state is None:
        state = default_url(distributed=name is not None)
    store = resolve_store(state)
    if name is None:
        return RetryBudget(UNNAMED, MemoryStore(store.clock), budget)
    return RetryBudget(name, store, budget)


def _count_nothing() -> None:
    """Count nothing: this retry has no budget."""


def _no_start() -> int:
    """Return 0 without reading the clock: this retry has no deadline."""
    return 0
