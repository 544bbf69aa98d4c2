"""An upstream: ``pncp = Upstream("pncp", limit="10/s")``, and every worker of the fleet behaves.

::

    call ─► retry ─► breaker ─► calls in flight ─► limit ─► time-out ─► the upstream
              ▲         │ open: refused at once       │ pause, degraded: waits, up to max_wait
              └─────────┴── what the attempt showed ◄─┴───────────────────────┘

It makes the parts and joins them; how a call goes through them is in ``calls.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from functools import wraps
from math import isfinite
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.breaker.registry import config_for
from comporta.callables import is_awaited
from comporta.flow import run, run_async
from comporta.limits.config import LimitConfig
from comporta.limits.degradation import Degradation
from comporta.limits.limiter import BaseLimiter
from comporta.limits.permits import HOLD_SECONDS_MAX, ConcurrencyLimit
from comporta.retry.budget import RetryBudget
from comporta.retry.retry import ALONE, Retry
from comporta.stores.urls import default_url, store_of
from comporta.timeouts import Timeouts
from comporta.upstream.attempt import Calling
from comporta.upstream.calls import Call
from comporta.upstream.parts import Parts
from comporta.upstream.report import CallReport, reported
from comporta.upstream.standing import UpstreamState, standing
from comporta.upstream.verdict import Judge, Verdict, checked, judged

if TYPE_CHECKING:
    from comporta.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SECONDS_MAX = 86_400.0
COUNTS = ("attempts", "series")

_HOLD_MARGIN_SECONDS = 10.0
"""A permit outlives the longest call by so much: its time begins with the wait for the limit."""


class Upstream:
    """How an upstream may be used, by everybody who uses it under this name and state.

    ``limit`` is a :class:`LimitConfig` or text such as ``"10/s"``. A call waits for it up to ``max_wait``
    seconds. ``breaker``, ``retry`` and ``degradation`` are on unless they are ``False``, and take their own
    configurations. ``timeout`` ends an attempt of a coroutine (``None``: never). ``max_concurrent`` bounds
    the calls in flight; a permit that nobody gives back ends after ``hold_seconds``.

    When the upstream says for how long it wants no calls (429 or 5xx with ``Retry-After``, a ``RateLimit``
    with nothing left), nobody in the fleet calls it, for ``pause_max`` seconds at the most. ``count`` says
    what the breaker counts: ``"attempts"``, or a ``"series"`` of them as one. ``judge`` is given the result,
    or the error, of an attempt and returns a :class:`Verdict`. ``state`` is a URL or a store; left out it is
    what the environment says, else this machine.
    """

    def __init__(
        self,
        name: str,
        limit: LimitConfig | str,
        *,
        max_wait: float = 5.0,
        breaker: CircuitBreaker | BreakerConfig | bool | None = True,
        retry: Retry | bool | None = True,
        degradation: Callable[[BaseLimiter], Degradation] | bool | None = True,
        timeout: float | None = 30.0,
        max_concurrent: int | None = None,
        hold_seconds: float | None = None,
        pause_max: float = 300.0,
        count: str = COUNTS[0],
        judge: Judge | None = None,
        state: str | Store | None = None,
    ) -> None:
        _check_seconds("max_wait", max_wait)
        _check_seconds("pause_max", pause_max)
        if count not in COUNTS:
            raise ValueError(f"count must be one of {', '.join(map(repr, COUNTS))}, got {count!r:.100}")
        if state is None:
            state = default_url(distributed=True)
        self.name = name
        self.store = store_of(state)
        self.limiter = BaseLimiter(limit, self.store, name)
        self.breaker = _breaker(name, breaker, self.store)
        self.retry = _retry(retry)
        self.permits: ConcurrencyLimit | None = None
        if max_concurrent is not None:
            hold = _longest(max_wait, timeout) if hold_seconds is None else hold_seconds
            self.permits = ConcurrencyLimit(name, max_concurrent, hold_seconds=hold, state=self.store)
        self._timeouts = None if timeout is None else Timeouts(timeout)
        self.parts = Parts(
            name=name,
            clock=self.store.clock,
            limiter=self.limiter,
            judge=_judged_now if judge is None else checked(judge),
            max_wait=max_wait,
            pause_max=pause_max,
            breaker=self.breaker,
            retry=self.retry,
            budget=_budget(name, self.retry, self.store),
            permits=self.permits,
            degradation=_degradation(degradation, self.limiter),
            per_attempt=count == COUNTS[0],
        )
        self.sync = SyncUpstream(self)

    def __repr__(self) -> str:
        return f"<Upstream {self.name!r}, {self.limiter.config}>"

    async def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a coroutine function by the rules."""
        return cast(T, await self.prepared(function, args, kwargs).made_async())

    def guard(self, function: F) -> F:
        """Have a function called by the rules from now on: a coroutine function, or a plain one."""
        if is_awaited(function):

            @wraps(function)
            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                return await self.prepared(function, args, kwargs).made_async()

            return cast(F, awaiting)

        @wraps(function)
        def blocking(*args: Any, **kwargs: Any) -> Any:
            return self.prepared(function, args, kwargs).made()

        return cast(F, blocking)

    def prepared(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        *,
        repeatable: bool = True,
    ) -> Call:
        """Return a call that is to be made, with its report."""
        report = CallReport(self.name)
        reported(report)
        attempt = Calling(function, arguments, keywords, self._timeouts)
        return Call(self.parts, attempt, report, repeatable=repeatable)

    def transport(self, inner: Any = None, *, client: str = "httpx2") -> Any:
        """Return a transport for ``httpx2.AsyncClient``, or with ``client="httpx"`` for httpx's.

        ``inner`` is the transport that sends; left out it is the package's own.
        """
        from comporta.upstream.httpx_like import transports  # noqa: PLC0415 - an extra

        return transports(client).awaiting(self, inner)

    async def get_state(self) -> UpstreamState:
        """Tell how the upstream stands, from the shared state."""
        return await run_async(standing(self.parts))

    async def aclose(self) -> None:
        """Give back what is on lease, and close the connections to the state; they open again when needed."""
        await self.limiter.aclose()


class SyncUpstream:
    """The verbs of an upstream, blocking: ``upstream.sync``."""

    __slots__ = ("_upstream",)

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function by the rules."""
        return cast(T, self._upstream.prepared(function, args, kwargs).made())

    def transport(self, inner: Any = None, *, client: str = "httpx2") -> Any:
        """Return a transport for ``httpx2.Client``, or httpx's."""
        from comporta.upstream.httpx_like import transports  # noqa: PLC0415 - an extra

        return transports(client).blocking(self._upstream, inner)

    def adapter(self, *, repeat: bool = False) -> Any:
        """Return an adapter to be mounted in a session of requests."""
        from comporta.upstream.requests_adapter import UpstreamAdapter  # noqa: PLC0415 - an extra

        return UpstreamAdapter(self._upstream, repeat=repeat)

    def get_state(self) -> UpstreamState:
        """Tell how the upstream stands, from the shared state."""
        return run(standing(self._upstream.parts))


def _judged_now(result: Any, error: Exception | None) -> Verdict:
    return judged(result, error, time.time())


def _breaker(
    name: str, breaker: CircuitBreaker | BreakerConfig | bool | None, store: Store
) -> CircuitBreaker | None:
    if isinstance(breaker, CircuitBreaker):
        return breaker
    if breaker is None or breaker is False:
        return None
    config = config_for(name) if breaker is True else breaker
    if not isinstance(config, BreakerConfig):
        raise TypeError(f"breaker must be a CircuitBreaker, a BreakerConfig or a bool, got {breaker!r:.50}")
    return CircuitBreaker(name, config=config, state=store)


def _retry(retry: Retry | bool | None) -> Retry | None:
    if retry is None or retry is False:
        return None
    made = Retry() if retry is True else retry
    if not isinstance(made, Retry):
        raise TypeError(f"retry must be a Retry or a bool, got {retry!r:.50}")
    return made


def _budget(name: str, retry: Retry | None, store: Store) -> RetryBudget | None:
    """Return the budget of the fleet; one that the retry was given by name stays what it is."""
    own = None if retry is None else retry.budget
    return own if own is None or own.name != ALONE else RetryBudget(name, store, own.budget)


def _longest(max_wait: float, timeout: float | None) -> float:
    """Return for how long a permit may be held by a call that takes as long as it can."""
    if timeout is None:
        return HOLD_SECONDS_MAX
    return min(HOLD_SECONDS_MAX, max_wait + timeout + _HOLD_MARGIN_SECONDS)


def _degradation(
    made: Callable[[BaseLimiter], Degradation] | bool | None, limiter: BaseLimiter
) -> Degradation | None:
    if made is None or made is False:
        return None
    make: object = Degradation if made is True else made
    degradation = make(limiter) if callable(make) else None
    if not isinstance(degradation, Degradation):
        raise TypeError(f"degradation must be a bool, or make a Degradation for a limiter, got {made!r:.50}")
    return degradation


def _check_seconds(name: str, seconds: float) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{name} must be a number of seconds, got {seconds!r:.50}")
    if not (isfinite(seconds) and 0 <= seconds <= SECONDS_MAX):
        raise ValueError(f"{name} must be 0 to {SECONDS_MAX:g} seconds, got {seconds}")
