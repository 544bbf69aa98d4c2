"""The public class of circuit breakers: ``@breaker``, ``async with breaker.admit()``, ``breaker.sync``.

It validates arguments and drives flows. It decides nothing: ``guard`` and ``flows`` do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from comporta.breaker.admission import PHASES, Admission, BreakerState
from comporta.breaker.block import AsyncBlock, SyncBlock, decorate_async_generator, decorate_generator
from comporta.breaker.config import BreakerConfig
from comporta.breaker.guard import CallGuard, decorate, decorate_async
from comporta.breaker.local_view import local_view
from comporta.breaker.state import OPEN, CircuitReply
from comporta.flow import run, run_async
from comporta.names import validate_name
from comporta.outcome import CountingRules
from comporta.refusals import RAISE, refusal_handler
from comporta.signatures import ASYNC_GENERATOR, COROUTINE, GENERATOR, PLAIN, callable_kind
from comporta.stores.base import Store
from comporta.stores.outage_info import Fallback
from comporta.stores.registry import default_url, resolve_store
from comporta.validators import ErrorFilter

F = TypeVar("F", bound=Callable[..., Any])

_DECORATORS: dict[str, Callable[[CallGuard, Any], Any]] = {
    PLAIN: decorate,
    COROUTINE: decorate_async,
    GENERATOR: decorate_generator,
    ASYNC_GENERATOR: decorate_async_generator,
}


class CircuitBreaker:
    """A circuit breaker, shared by all workers that use the same name and state.

    ``state`` is a URL or a store; by default it comes from the environment, else the state is shared on this
    machine. The other keywords are the options of :class:`BreakerConfig`, which you can also pass as
    ``config``.

    :func:`comporta.classify` decides what a call counts as: if the call returned a response, or raised an
    exception that carries one, the status decides; any other exception is a failure. Cancelled and refused
    calls, calls that did not reach the upstream and programming errors are not counted.

    ``ignore`` and ``failures`` override that for some exceptions. Each is a class, a tuple of classes or a
    function of an exception. Exceptions that match ``ignore`` are not counted; those that match ``failures``
    count as failures. Two functions replace the rule: ``counts_error(error)`` returns true for exceptions,
    and ``counts_result(result)`` for results of decorated functions, that count as failures; all others count
    as successes.

    A call that the breaker refuses raises :class:`comporta.CircuitOpenError`. With ``on_refusal``, a refused
    call of a decorated function returns that value instead; if it is a function, it is called with the error
    and its result is returned.
    """

    name: str
    """The name that workers share."""

    config: BreakerConfig
    """The options."""

    store: Store
    """The store that holds the circuit."""

    sync: SyncBreaker
    """The same breaker for blocking code."""

    def __init__(
        self,
        name: str,
        threshold: int | None = 5,
        cooldown_seconds: float = 30.0,
        *,
        state: str | Store | None = None,
        config: BreakerConfig | None = None,
        ignore: ErrorFilter | None = None,
        failures: ErrorFilter | None = None,
        counts_error: Callable[[Exception], bool] | None = None,
        counts_result: Callable[[Any], bool] | None = None,
        on_refusal: Any = RAISE,
        **options: Any,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, got {name!r:.50}")
        validate_name(name)
        if config is None:
            config = BreakerConfig(threshold, cooldown_seconds, **options)
        elif not isinstance(config, BreakerConfig):
            raise TypeError(f"config must be a BreakerConfig, got {config!r:.50}")
        elif options or (threshold, cooldown_seconds) != (5, 30.0):
            given = ", ".join(options) or "threshold and cooldown_seconds"
            raise TypeError(f"config already has all options: pass either config or {given}, not both")
        rules = CountingRules.from_options(ignore, failures, counts_error, counts_result)
        if state is None:
            state = default_url(distributed=True)
        self.name = name
        self.config = config
        self.store = resolve_store(state)
        self._view = local_view(self.store, name, config)
        self._guard = CallGuard(self._view, rules, refusal_handler(on_refusal))
        self._flows = self._guard.flows
        self.sync = SyncBreaker(self)

    def __repr__(self) -> str:
        return f"<CircuitBreaker {self.name!r}, {self.config}>"

    @property
    def counts_error(self) -> Callable[[Exception], bool] | None:
        """The function that decides which exceptions count as failures, if there is one."""
        return self._guard.rules.counts_error

    @property
    def counts_result(self) -> Callable[[Any], bool] | None:
        """The function that decides which results count as failures, if there is one."""
        return self._guard.rules.counts_result

    @property
    def threshold(self) -> int | None:
        """The number of failures in a row that opens the circuit."""
        return self.config.threshold

    @property
    def cooldown_seconds(self) -> float:
        """How long the circuit stays open."""
        return self.config.cooldown_seconds

    @property
    def fallback(self) -> Fallback | None:
        """Since when and why this worker cannot reach the store; ``None`` while it can."""
        return self.store.fallback

    @property
    def is_degraded(self) -> bool:
        """Whether the circuit is open: exact on one machine, up to ``staleness`` seconds old on a server.

        If the local view is older than that, reading this property blocks for one round trip to the store.
        """
        return self._current_reply().phase == OPEN

    @property
    def consecutive_failures(self) -> int:
        """The number of failures in a row, over all workers."""
        return self._current_reply().failures

    @property
    def degraded_until(self) -> float | None:
        """When the cooldown ends, in Unix seconds; ``None`` if the circuit is not open, or is forced open."""
        self._current_reply()
        return self._view.state.open_until()

    @property
    def phase(self) -> str:
        """``"closed"``, ``"open"``, ``"half_open"`` or ``"ramp"``."""
        return PHASES[self._current_reply().phase]

    def _current_reply(self) -> CircuitReply:
        return self._view.current_reply() or run(self._flows.read_flow())

    async def is_degraded_async(self) -> bool:
        """Read from the store whether the circuit is open."""
        return (await run_async(self._flows.read_flow())).phase == OPEN

    async def allow(self) -> Admission:
        """Return whether a call may be made. Pass the admission along with the call's result."""
        return await run_async(self._flows.admit_flow())

    def admit(self) -> AsyncBlock:
        """Return a block that makes a call: ``async with breaker.admit() as admission:``.

        It raises :class:`comporta.CircuitOpenError` if the call may not be made, and records how it ended.
        """
        return AsyncBlock(self._guard)

    async def record_failure(self, error: object = None, admission: Admission | None = None) -> None:
        """Record a failed call; ``error`` is an exception or a text that says why."""
        await run_async(self._flows.fail_flow(admission, error))

    async def record_success(self, admission: Admission | None = None) -> None:
        """Record a successful call; without an admission it closes the circuit in any phase."""
        await run_async(self._flows.succeed_flow(admission))

    async def give_back(self, admission: Admission) -> None:
        """Record that an admitted call had no result, so that another worker may make the probe."""
        await run_async(self._flows.release_flow(admission))

    async def try_recover(self) -> bool:
        """Return whether the circuit is no longer open. You need not call it: cooldowns end by themselves."""
        return not await self.is_degraded_async()

    async def reset(self) -> None:
        """Close the circuit and delete its counts. Results of calls in progress no longer count."""
        await run_async(self._flows.reset_flow())

    async def force(self, how: str | None, reason: str = "") -> None:
        """Hold the circuit ``"open"`` or ``"closed"`` for all workers, until you call it with ``None``."""
        await run_async(self._flows.force_flow(how, reason))

    async def get_state(self) -> BreakerState:
        """Read the state of the circuit from the store, for a health page."""
        return await run_async(self._flows.state_flow())

    async def aclose(self) -> None:
        """Close the store's connections, including those of this event loop; they reopen when needed."""
        await self.store.aclose()

    def __call__(self, function: F) -> F:
        """Decorate a function, a coroutine function, a generator function or any other callable.

        The admission of a generator lasts from its first item until it ends, fails or is closed.
        """
        decorated: F = _DECORATORS[callable_kind(function)](self._guard, function)
        return decorated


class SyncBreaker:
    """A breaker for blocking code: ``breaker.sync``."""

    __slots__ = ("_flows", "_guard")

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._guard = breaker._guard
        self._flows = breaker._flows

    def allow(self) -> Admission:
        """Return whether a call may be made. Pass the admission along with the call's result."""
        return run(self._flows.admit_flow())

    def admit(self) -> SyncBlock:
        """Return a block that makes a call: ``with breaker.sync.admit() as admission:``.

        It raises :class:`comporta.CircuitOpenError` if the call may not be made, and records how it ended.
        """
        return SyncBlock(self._guard)

    def record_failure(self, error: object = None, admission: Admission | None = None) -> None:
        """Record a failed call; ``error`` is an exception or a text that says why."""
        run(self._flows.fail_flow(admission, error))

    def record_success(self, admission: Admission | None = None) -> None:
        """Record a successful call; without an admission it closes the circuit in any phase."""
        run(self._flows.succeed_flow(admission))

    def give_back(self, admission: Admission) -> None:
        """Record that an admitted call had no result, so that another worker may make the probe."""
        run(self._flows.release_flow(admission))

    def is_degraded(self) -> bool:
        """Read from the store whether the circuit is open."""
        return run(self._flows.read_flow()).phase == OPEN

    def try_recover(self) -> bool:
        """Return whether the circuit is no longer open."""
        return not self.is_degraded()

    def reset(self) -> None:
        """Close the circuit and delete its counts. Results of calls in progress no longer count."""
        run(self._flows.reset_flow())

    def force(self, how: str | None, reason: str = "") -> None:
        """Hold the circuit ``"open"`` or ``"closed"`` for all workers, until you call it with ``None``."""
        run(self._flows.force_flow(how, reason))

    def get_state(self) -> BreakerState:
        """Read the state of the circuit from the store, for a health page."""
        return run(self._flows.state_flow())

    def close(self) -> None:
        """Close the store's blocking connections; they reopen when needed."""
        self._guard.view.store.close_connections()
