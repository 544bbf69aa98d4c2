"""The face of a retry: ``await retry.call(fn, ...)``, ``retry.sync.call(fn, ...)`` or ``@retry``.

A call that succeeds at once pays for one count and nothing else; only a failure starts the flow. What ends it
is always the error of the last try itself: nothing is wrapped, so callers catch what they always caught.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from math import isfinite
from typing import Any, NoReturn, ParamSpec, TypeVar, cast

from comporta.callables import is_awaited
from comporta.chance import uniform
from comporta.clock import MONOTONIC, Clock
from comporta.errors import CircuitOpenError, RefusedError
from comporta.flow import Effect, Flow, run, run_async
from comporta.retry.backoff import Backoff, Delays, Draw, Jitter
from comporta.retry.budget import Budget, RetryBudget
from comporta.stores.base import Store
from comporta.stores.effects import Sleep
from comporta.stores.memory import MemoryStore
from comporta.stores.urls import default_url, store_of

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

On = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]

ALONE = "alone"
"""The name of a budget that nobody else uses."""


class Failed:
    """A try that ended in an error; an answer, because a generator cannot raise every exception there is."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error

    def raise_it(self) -> NoReturn:
        """Raise the error, once, and hold it no longer.

        By its traceback it holds the frames that hold this, and would stay until somebody collects garbage.
        """
        error = self.error
        del self.error
        try:
            raise error
        finally:
            del error


class Attempt:
    """Effect: call what the user gave; a failure is an answer, a cancellation is not."""

    __slots__ = ("_args", "_fn", "_kwargs")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn = fn
        self._args = args
        self._kwargs = kwargs

    def block(self) -> Any:
        """Call it."""
        try:
            return self._fn(*self._args, **self._kwargs)
        except Exception as error:
            return Failed(error)

    async def wait(self) -> Any:
        """Await it."""
        try:
            return await self._fn(*self._args, **self._kwargs)
        except Exception as error:
            return Failed(error)


class Retry:
    """Tries again what failed: three times by default, after 2, 4 and 8 seconds and up to half a second each.

    ``on`` says what is worth it: an exception, several, or a function of one. ``deadline`` bounds all tries
    and waits together: no try is begun after it, though one under way is not cut short. An exception with
    a ``retry_after`` is obeyed: the wait is never shorter, and if it would be over ``max_delay`` there is
    none. Against an open circuit nothing is tried again.

    ``budget`` bounds what all calls together may spend on retries; with a ``name`` it is shared by all who
    use the name on the same ``state`` (left out: what the environment says), without one it is this
    object's own. ``None``: no bound.
    """

    def __init__(
        self,
        retries: int = 3,
        base: float = 2.0,
        factor: float = 2.0,
        jitter: Jitter = (0.0, 0.5),
        *,
        max_delay: float = 60.0,
        deadline: float | None = None,
        on: On = Exception,
        budget: RetryBudget | Budget | None = Budget(),  # noqa: B008 - frozen
        name: str | None = None,
        state: str | Store | None = None,
        clock: Clock | None = None,
        draw: Draw = uniform,
    ) -> None:
        self.backoff = Backoff(retries, base, factor, jitter, max_delay, deadline)
        self.budget = _budget_of(budget, name, state)
        self.clock = clock or (self.budget.store.clock if self.budget else MONOTONIC)
        self._wanted = _predicate(on)
        self._draw = draw
        self._called = self.budget.called if self.budget else _uncounted
        self._began_ns = _timeless if deadline is None else self.clock.now_ns
        self.sync = SyncRetry(self)

    def delays(self) -> Delays:
        """Return the waits of one call, for whoever makes the tries themselves."""
        return self.backoff.delays(self._draw)

    def wants(self, error: Exception) -> bool:
        """Whether it is worth trying again after this."""
        return not isinstance(error, CircuitOpenError) and bool(self._wanted(error))

    async def call(self, fn: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn`` and await it, again if it fails."""
        self._called()
        began_ns = self._began_ns()
        try:
            return await fn(*args, **kwargs)
        except Exception as error:
            flow = self.retrying(Attempt(fn, args, kwargs), Failed(error), began_ns)
        return cast(T, _ended(await run_async(flow)))

    def call_sync(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn``, again if it fails; blocking. See ``sync``."""
        self._called()
        began_ns = self._began_ns()
        try:
            return fn(*args, **kwargs)
        except Exception as error:
            flow = self.retrying(Attempt(fn, args, kwargs), Failed(error), began_ns)
        return cast(T, _ended(run(flow)))

    def retrying(self, attempt: Effect, failed: Failed, began_ns: int) -> Flow[Any]:
        """Try again after a first failure; returns what the last try did, be it ``Failed``.

        ``attempt`` is an effect that answers with ``Failed`` where it fails.
        """
        delays = self.delays()
        while True:
            delay = self._delay(delays, failed.error, began_ns)
            if delay is None or not (yield from self._affordable(failed.error)):
                return failed
            yield Sleep(self.clock, delay)
            outcome = yield attempt
            if type(outcome) is not Failed:
                return outcome
            failed = outcome

    def _delay(self, delays: Delays, error: Exception, began_ns: int) -> float | None:
        if not self.wants(error):
            return None
        elapsed = (self.clock.now_ns() - began_ns) / 1e9 if self.backoff.deadline else 0.0
        return delays.next_delay(retry_after_of(error), elapsed)

    def _affordable(self, error: Exception) -> Flow[bool]:
        """Whether the budget has a retry left; what was refused never reached the upstream and costs none."""
        if self.budget is None or isinstance(error, RefusedError):
            return True
        return (yield from self.budget.withdrawing())

    def __call__(self, fn: F) -> F:
        """Decorate a function, plain or asynchronous: it stays what it is."""
        if is_awaited(fn):

            @wraps(fn)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                return await self.call(fn, *args, **kwargs)

            return cast(F, awaiting)

        @wraps(fn)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self.call_sync(fn, *args, **kwargs)

        return cast(F, blocking)


class SyncRetry:
    """``retry.sync.call(fn, ...)``: the same, blocking."""

    __slots__ = ("call",)

    def __init__(self, retry: Retry) -> None:
        self.call = retry.call_sync


def retry_after_of(error: BaseException) -> float:
    """Return how many seconds an error asks to wait; 0 if it says nothing that makes sense."""
    try:
        told = getattr(error, "retry_after", 0.0)
    except Exception:  # somebody else's property
        return 0.0
    if isinstance(told, bool) or not isinstance(told, int | float) or not isfinite(told):
        return 0.0
    return max(0.0, float(told))


def _ended(outcome: Any) -> Any:
    if type(outcome) is Failed:
        outcome.raise_it()
    return outcome


def _predicate(on: Any) -> Callable[[Exception], bool]:
    kinds = on if isinstance(on, tuple) else (on,)
    if all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if isinstance(on, type | tuple) or not callable(on):
        raise TypeError(f"on must be subclasses of Exception or a function of one, got {on!r:.100}")
    return cast(Callable[[Exception], bool], on)


def _budget_of(
    budget: RetryBudget | Budget | None, name: str | None, state: str | Store | None
) -> RetryBudget | None:
    if budget is None or isinstance(budget, RetryBudget):
        return budget
    if not isinstance(budget, Budget):
        raise TypeError(f"budget must be a Budget, a RetryBudget or None, got {budget!r:.50}")
    if state is None:
        state = default_url(distributed=name is not None)
    store = store_of(state)
    if name is None:
        return RetryBudget(ALONE, MemoryStore(store.clock), budget)  # others without a name are others
    return RetryBudget(name, store, budget)


def _uncounted() -> None:
    """Count nothing: there is no budget."""


def _timeless() -> int:
    """Read no clock: there is no deadline."""
    return 0
