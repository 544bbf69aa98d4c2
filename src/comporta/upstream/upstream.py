"""The public class of upstreams: ``pncp = Upstream("pncp", limit="10/s")``.

::

    call ─► retry ─► breaker ─► permits ─► limit ─► time-out ─► the upstream
              ▲         │ open: refused       │ paused or lowered: waits up to max_wait
              └─────────┴── outcome ◄─────────┴───────────────────────┘

This module validates the options and creates the policies; ``flows`` takes a call through them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, ParamSpec, Self, TypeVar, cast, overload

from comporta.breaker.breaker import CircuitBreaker
from comporta.breaker.config import BreakerConfig
from comporta.flow import run_async
from comporta.limits.concurrency.limit import ConcurrencyLimit
from comporta.limits.config import Limits
from comporta.limits.cost import Cost
from comporta.limits.group import LimitGroup
from comporta.limits.limiter import BaseLimiter
from comporta.limits.overrides.degradation import Degradation
from comporta.outcome import Classifier, CountingRules, checked_classifier, classify
from comporta.refusals import RAISE, refusal_handler
from comporta.retry.attempts import NO_HOOKS
from comporta.retry.retry import Retry
from comporta.runtime import PerProcess
from comporta.signatures import callable_kind
from comporta.stores.live_objects import LiveObjects, require_picklable
from comporta.stores.name_claims import NameClaims
from comporta.stores.registry import default_url, resolve_store
from comporta.threads import run_cleanup
from comporta.upstream.call_state import FUNCTION_CALL, CallTraits
from comporta.upstream.factory import (
    default_permit_ttl,
    make_breaker,
    make_budget,
    make_degradation,
    make_limits,
    make_retry,
    with_rules_of,
)
from comporta.upstream.flows import UpstreamCall
from comporta.upstream.generators import guard_async_generator, guard_generator
from comporta.upstream.guarded_function import guard_coroutine_function, guard_function
from comporta.upstream.health import UpstreamState, upstream_health_flow
from comporta.upstream.options import (
    SECONDS_MAX,
    UNCHANGED,
    CallOptions,
    Unchanged,
    check_buffer_body,
    make_timeouts,
)
from comporta.upstream.policies import Policies
from comporta.upstream.replaceable_guards import ReplaceableGuards
from comporta.upstream.sync_upstream import SyncUpstream
from comporta.validators import ErrorFilter, require_choice, require_number

if TYPE_CHECKING:
    import httpx
    import httpx2
    from aiohttp import ClientMiddlewareType

    from comporta.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

COUNT_MODES = ("attempts", "series")

_DEFAULT_CLASSIFIER = classify
"""Its outcomes need no check, unlike those of a user's function."""

_CLAIMS = NameClaims()
_LIVE: PerProcess[LiveObjects[Upstream]] = PerProcess(LiveObjects)


class _PermitBound(NamedTuple):
    """Whether the calls of a name are bounded; its breaker, limits and budget check their own options."""

    max_concurrent: int | None

    def __str__(self) -> str:
        return f"an upstream with max_concurrent={self.max_concurrent}"


class Upstream:
    """The policies for calls to one upstream, shared by all workers that use the same name and state.

    ``limit`` is a :class:`LimitConfig` or a text such as ``"10/s"``; a call waits for it up to ``max_wait``
    seconds. Several limits are a list, text such as ``"10/s; 1000/day"``, or limits by name; a call takes
    from all of them or from none. A pause and degradation act on the first.

    ``breaker``, ``retry`` and ``degradation`` are on unless they are ``False``, and accept objects of their
    own types. ``timeout`` bounds one attempt of a coroutine function, in seconds; ``None``: no bound.
    ``max_concurrent`` bounds the calls in flight; the permit of a worker that was killed expires after
    ``permit_ttl`` seconds.

    When the upstream asks for a pause (429 or 5xx with ``Retry-After``, or a ``RateLimit`` with nothing
    left), all workers stop calling it, for up to ``pause_max`` seconds. Refused calls lower the limit, once
    for all that are refused at the same time, by the rule ``"cubic"`` of :class:`Degradation`. ``count`` is
    what the breaker counts: ``"attempts"``, or ``"series"`` to count only the last attempt of a call.

    ``classify`` gets the result or the error of an attempt and returns an :class:`Outcome`; the default is
    :func:`comporta.classify`. ``ignore`` and ``failures`` make exceptions to it. Each is a class, a tuple of
    classes or a function of an exception; those that match count for nothing, or as a failure. The rules of a
    :class:`CircuitBreaker` that you pass as ``breaker`` apply as well. ``state`` is a URL or a store; by
    default it comes from the environment, otherwise it is this machine.

    A call that the breaker or the limit refuses raises a :class:`comporta.RefusedError`. With ``on_refusal``
    it returns that value instead, or what that function returns for the refusal (a coroutine function may be
    used where the call is async). A transport uses the answer only if it is a response.
    """

    name: str
    """The name that workers share."""

    store: Store
    """The store that holds the shared state."""

    limiter: BaseLimiter
    """The limit; the first of several."""

    limits: LimitGroup | None
    """All limits, if there are several."""

    breaker: CircuitBreaker | None
    """The circuit breaker, if there is one."""

    retry: Retry | None
    """The retry, if there is one."""

    permits: ConcurrencyLimit | None
    """The limit on calls in flight, if there is one."""

    degradation: Degradation | None
    """What lowers the limit when the upstream refuses calls, if anything does."""

    sync: SyncUpstream
    """The same upstream for blocking code."""

    def __init__(
        self,
        name: str,
        limit: Limits,
        *,
        max_wait: float = 5.0,
        breaker: CircuitBreaker | BreakerConfig | bool | None = True,
        retry: Retry | bool | None = True,
        degradation: Callable[[BaseLimiter], Degradation] | bool | None = True,
        timeout: float | None = 30.0,
        max_concurrent: int | None = None,
        permit_ttl: float | None = None,
        pause_max: float = 300.0,
        count: str = COUNT_MODES[0],
        classify: Classifier = classify,
        ignore: ErrorFilter | None = None,
        failures: ErrorFilter | None = None,
        on_refusal: Any = RAISE,
        state: str | Store | None = None,
    ) -> None:
        require_number("max_wait", max_wait, 0, SECONDS_MAX, unit="seconds")
        require_number("pause_max", pause_max, 0, SECONDS_MAX, unit="seconds")
        require_choice("count", count, COUNT_MODES)
        rules = CountingRules.from_options(ignore, failures)
        classify = classify if classify is _DEFAULT_CLASSIFIER else checked_classifier(classify)
        if state is None:
            state = default_url(distributed=True)
        self.name = name
        self.store = resolve_store(state)
        self.limiter, self.limits = make_limits(name, limit, self.store)
        self.breaker = make_breaker(name, breaker, self.store)
        self.retry = make_retry(retry)
        self.degradation = make_degradation(degradation, self.limiter)
        self.permits = None
        self._claim = _CLAIMS.claim(self.store, name, _PermitBound(max_concurrent))
        if max_concurrent is not None:
            ttl = default_permit_ttl(max_wait, timeout) if permit_ttl is None else permit_ttl
            self.permits = ConcurrencyLimit(name, max_concurrent, permit_ttl=ttl, state=self.store)
        self._options = CallOptions(timeouts=make_timeouts(timeout))
        self._policies = Policies(
            name=name,
            clock=self.store.clock,
            limiter=self.limiter,
            classify=rules.apply_to(with_rules_of(self.breaker, classify)),
            max_wait=max_wait,
            pause_max=pause_max,
            breaker=None if self.breaker is None else self.breaker._guard,
            retry=self.retry,
            budget=make_budget(name, self.retry, self.store),
            permits=self.permits,
            degradation=self.degradation,
            counts_attempts=count == COUNT_MODES[0],
            on_refusal=refusal_handler(on_refusal),
            hooks=NO_HOOKS if self.retry is None else self.retry._hooks,
            group=self.limits,
        )
        self._label_shadow_counts()
        self.sync = SyncUpstream(self)
        self._is_view = False
        self._guards: ReplaceableGuards | None = None  # set where settings may be reloaded
        _LIVE.get().add(self.store, name, self)

    def _label_shadow_counts(self) -> None:
        """Label the counts of calls that policies in shadow would refuse with the name of this upstream."""
        limiters = [self.limiter] if self.limits is None else self.limits.limiters.values()
        for limiter in limiters:
            if limiter._flows.shadow is not None:
                limiter._flows.shadow.upstream = self.name
        if self.breaker is not None:
            self.breaker._guard.flows.upstream = self.name

    def _become(self, other: Upstream) -> None:
        """Take over the options of another upstream in place, for all holders of this one and its guards."""
        limiter, policies, sync, guards = self.limiter, self._policies, self.sync, self._guards
        limiter._become(other.limiter)
        policies.become(other._policies, limiter)
        self.__dict__.update(other.__dict__)
        self.limiter, self._policies, self.sync, self._guards = limiter, policies, sync, guards
        if guards is not None:
            guards.make_again()
        _LIVE.get().add(self.store, self.name, self)

    def __copy__(self) -> Upstream:
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        return view

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: another process gets its own upstream of this name."""
        require_picklable(f"upstream {self.name!r}", self.store)
        if self._is_view:
            raise TypeError(
                f"a view of upstream {self.name!r} cannot be pickled: pickle the upstream and call options() "
                "where it arrives"
            )
        return _restore_upstream, (self.store.address, self.name)

    def __repr__(self) -> str:
        return f"<Upstream {self.name!r}, {self.limiter.config}>"

    async def call(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call a coroutine function through the policies."""
        return cast(T, await self._prepare(function, args, kwargs).execute_async())

    def options(
        self,
        *,
        timeout: float | Unchanged | None = UNCHANGED,
        priority: str | Unchanged | None = UNCHANGED,
        owner: str | Unchanged | None = UNCHANGED,
        cost: Cost | Unchanged = UNCHANGED,
        max_wait: float | Unchanged = UNCHANGED,
    ) -> Upstream:
        """Return a view of this upstream that makes its calls with other options.

        The view shares all policies and counts with this upstream. ``timeout=None`` is for answers that
        never end, such as server-sent events. ``priority`` (``"interactive"``, ``"normal"``, ``"batch"``) and
        ``owner`` are by default those of :func:`comporta.priority`. ``cost`` is what each attempt takes from
        the limit, or numbers by name for several limits; a limit that is left out costs 1. ``max_wait`` is
        how many seconds a call waits for capacity.
        """
        view = copy(self)
        view._is_view = True
        if cost is not UNCHANGED:
            cost = self._policies.tokens.check_cost(cost)
        view._options = self._options.change(
            timeout=timeout, priority=priority, owner=owner, cost=cost, max_wait=max_wait
        )
        view.sync = SyncUpstream(view)
        return view

    def guard(self, function: F) -> F:
        """Decorate a function, so that its calls go through the policies.

        It may be a coroutine function or a generator function of either kind. A generator is one attempt
        until it ends, fails or is closed, and is started again only if it fails before its first item.
        """
        kind = callable_kind(function)
        if kind == "generator":
            return cast(F, guard_generator(self._prepare, function))
        if kind == "async_generator":
            return cast(F, guard_async_generator(self._prepare, function, self._options))
        guard = guard_coroutine_function if kind == "coroutine" else guard_function

        def make() -> Callable[..., Any]:
            return guard(self._policies, function, self._options)

        return cast(F, make() if self._guards is None else self._guards.add(function, make))

    def _prepare(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        traits: CallTraits = FUNCTION_CALL,
    ) -> UpstreamCall:
        """Return a call, ready to be executed, with its report."""
        return UpstreamCall(self._policies, function, arguments, keywords, self._options, traits)

    @overload
    def transport(
        self,
        inner: httpx2.AsyncBaseTransport | None = None,
        *,
        client: Literal["httpx2"] = "httpx2",
        buffer_body: int | None = None,
    ) -> httpx2.AsyncBaseTransport: ...

    @overload
    def transport(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        client: Literal["httpx"],
        buffer_body: int | None = None,
    ) -> httpx.AsyncBaseTransport: ...

    def transport(self, inner: Any = None, *, client: str = "httpx2", buffer_body: int | None = None) -> Any:
        """Return a transport for ``httpx2.AsyncClient``, or with ``client="httpx"`` for httpx's.

        ``inner`` is the transport that sends the requests; by default it is the package's own. Bodies of up
        to ``buffer_body`` bytes are read before the response is returned, so that an attempt whose body
        breaks off can be retried.
        """
        from comporta.upstream.httpx_transport import transport_classes  # noqa: PLC0415 - an extra

        return transport_classes(client).awaiting(self, inner, check_buffer_body(buffer_body))

    def middleware(
        self, *, repeat: bool | None = None, buffer_body: int | None = None
    ) -> ClientMiddlewareType:
        """Return a middleware for ``aiohttp.ClientSession(middlewares=[…])``.

        ``repeat``: whether to retry requests of every method (``True``) or of none (``False``). Bodies of up
        to ``buffer_body`` bytes are read before the response is returned, as in :meth:`transport`.
        """
        from comporta.upstream.aiohttp_middleware import UpstreamMiddleware  # noqa: PLC0415 - an extra

        return UpstreamMiddleware(self, repeat=repeat, buffer_body=check_buffer_body(buffer_body))

    async def settle(self, reserved: Cost, used: Cost, granted_at: float | None = None) -> bool:
        """Credit or debit what an attempt cost less or more than its ``cost``.

        An attempt for which 1,200 tokens were estimated and that used 900 settles with
        ``settle({"tokens": 1200}, {"tokens": 900})``. ``granted_at`` is when the attempt began, by
        ``time.monotonic()``. See :meth:`BaseLimiter.settle`.
        """
        return await run_async(self._policies.tokens.settle_flow(reserved, used, granted_at))

    async def get_state(self) -> UpstreamState:
        """Read the state of the upstream from the store, for a health page."""
        return await run_async(upstream_health_flow(self._policies))

    async def aclose(self) -> None:
        """Return leased tokens and permits and close the store's connections; they reopen when needed."""
        if self.permits is not None:
            await run_async(self.permits._flush_flow())
        await self.limiter.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, GeneratorExit):
            run_cleanup(self.sync.close)  # a closed coroutine cannot await
        else:
            await self.aclose()


def _restore_upstream(address: str, name: str) -> Upstream:
    upstream = _LIVE.get().find(address, name)
    if upstream is None:
        raise LookupError(
            f"upstream {name!r} on {address} does not exist in this process: create it at the top of a "
            "module that this process imports, with the same state"
        )
    return upstream
