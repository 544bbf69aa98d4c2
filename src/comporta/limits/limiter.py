"""Limiters, the classes that users call: ``await limiter.acquire(key)`` or ``limiter.sync.acquire(key)``.

A limiter ties a configuration to a store under a name. It makes no decisions itself: a strategy does, inside
the store. A single decision takes a fast path; every other method drives a flow (``flows.py``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar

from comporta.clock import to_us
from comporta.flow import run_async
from comporta.limits.acquire import AcquireOperation, LimitDefinition
from comporta.limits.arguments import is_timeout
from comporta.limits.block import LimitBlock
from comporta.limits.bound_limits import RemoteBoundLimit
from comporta.limits.budgets.flows import BudgetFlows
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.config import LimitConfig, LimitStrategy
from comporta.limits.decision import Decision, Stats
from comporta.limits.fast_decision import decision_path
from comporta.limits.flows import Key, LimitFlows
from comporta.limits.key import LimitKey, normalize_key
from comporta.limits.leases.client import LeaseClient
from comporta.limits.per_key import LimitFor, LimitTable, PerKeyFlows
from comporta.limits.priority import contexts_entered, has_own_caller, resolve_caller
from comporta.limits.scripts import OVERRIDE_SPACE
from comporta.limits.shadow import ShadowBoundLimit
from comporta.limits.strategies.base import Strategy
from comporta.limits.strategies.registry import strategy_type
from comporta.limits.sync_limiter import SyncLimiter
from comporta.names import validate_name
from comporta.runtime import PerProcess
from comporta.stores.base import StateKey, Store
from comporta.stores.bound_limit import Binding, BoundLimit, WouldBlock
from comporta.stores.live_objects import LiveObjects, require_picklable, store_at
from comporta.stores.name_claims import NameClaims
from comporta.stores.outage_info import Fallback
from comporta.stores.records import RECORD
from comporta.stores.registry import default_url, resolve_store

_CLAIMS = NameClaims()
_LIVE: PerProcess[LiveObjects[BaseLimiter]] = PerProcess(LiveObjects)


class BaseLimiter:
    """A limit that all workers with the same store and name share.

    ``config`` is a :class:`LimitConfig` or text such as ``"10/s"``. ``state`` is a store or its URL; by
    default the limit belongs to this limiter alone or, if the configuration is ``distributed``, to the store
    that the environment names. ``name`` identifies the limit in its store; by default it is derived from the
    configuration. The key ``None`` is the limit as a whole. ``limit_for`` gives some keys another limit: a
    table from keys to limits, or a function from the text of a key to a limit or ``None``, which is called
    for every decision. ``sync`` has the same methods for blocking code.
    """

    _fixed_strategy: ClassVar[LimitStrategy | None] = None

    def __init__(
        self,
        config: LimitConfig | str,
        state: str | Store | None = None,
        name: str | None = None,
        *,
        limit_for: LimitFor | None = None,
    ) -> None:
        self.config = LimitConfig.coerce(config, self._fixed_strategy)
        self.name = _default_name(self.config) if name is None else validate_name(name)
        if state is None:
            state = default_url(distributed=self.config.distributed)
        self.store = resolve_store(state)
        self._claim = _CLAIMS.claim(
            self.store,
            self.name,
            self.config,
            advice="choose another name, or call set_limit() on the existing limiter",
        )
        strategy = self.config.build_strategy().on_clock(self.store.clock)
        definition = LimitDefinition(
            strategy,
            self.name,
            self.config.fallback,
            to_us(self.config.closed_after),
            has_claims=self.store.shared,
        )
        bound = _bind_limit(self.config, self.store, definition)
        if self.config.shadow:
            bound = ShadowBoundLimit(bound, self.name)
        self._flows: LimitFlows = LimitFlows(
            self.config,
            self.store,
            self.name,
            bound,
            current_strategy=definition.current_strategy,
            lease_client=bound.leases,
        )
        if limit_for is not None:
            self._flows = PerKeyFlows(LimitTable(self._flows, limit_for, self._make_flows))
            bound = self._flows.bound
        self._limit_for = limit_for
        self._slow_keys, self._needs_flow = self._flows.fast_path_checks()
        self._try_acquire = bound.try_acquire if bound.decides_in_process else None
        self._acquire_async = bound.acquire_async
        self._budget = BudgetFlows(self._flows)
        self._decide_now = decision_path(self._flows)
        self.sync = SyncLimiter(self._flows, self._budget)
        _LIVE.get().add(self.store, self.name, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name: the other process gets its own limiter of this name, on the same store."""
        require_picklable(f"limiter {self.name!r}", self.store)
        return _restore_limiter, (type(self), self.config, self.store.address, self.name, self._limit_for)

    def _become(self, other: BaseLimiter) -> None:
        """Adopt the configuration of another limiter, so that holders of this one or its ``sync`` use it."""
        sync = self.sync
        for field in SyncLimiter.__slots__:
            setattr(sync, field, getattr(other.sync, field))
        self.__dict__.update(other.__dict__)
        self.sync = sync
        _LIVE.get().add(self.store, self.name, self)

    def _make_flows(self, config: LimitConfig) -> LimitFlows:
        """Return the flows of another limit on the same store, for the keys that have it."""
        return BaseLimiter(config, self.store, f"{self.name}.{_default_name(config)}")._flows

    @property
    def fallback(self) -> Fallback | None:
        """Since when and why this worker uses its local share, or ``None`` while the store is reachable."""
        return self.store.fallback

    @property
    def strategy(self) -> LimitStrategy | str:
        """The strategy of this limit: a ``LimitStrategy``, or the name of a registered strategy."""
        return self.config.strategy

    async def acquire(
        self,
        key: Key = None,
        cost: int = 1,
        timeout: float | None = 0,
        priority: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Take ``cost`` from the limit of a key; true if it was granted.

        ``timeout`` is how many seconds to wait: 0 does not wait, ``None`` waits without a bound. The limiter
        serves waiting callers of a higher ``priority`` (``"interactive"``, ``"normal"``, ``"batch"``) first,
        lets each ``owner`` take turns, and serves the callers of one owner in order of arrival. By default
        :func:`comporta.priority` gives both.
        """
        if type(key) is LimitKey:
            key = key._text
        if (
            cost == 1
            and priority is None
            and owner is None
            and not (contexts_entered and has_own_caller())
            and not (self._slow_keys and self._needs_flow(key))
        ):
            if timeout == 0:
                if self._try_acquire is not None:
                    try:
                        return not self._try_acquire(key, 1)
                    except WouldBlock:
                        pass
                return not await self._acquire_async(key, 1)
            if (
                self._try_acquire is not None
                and is_timeout(timeout)
                and not (self._flows.contended_until_us and self._flows.is_contended)
            ):
                try:
                    if not self._try_acquire(key, 1):
                        return True
                except WouldBlock:
                    pass
        caller = resolve_caller(priority, owner)
        return await run_async(self._flows.acquire_flow(key, cost, timeout, caller))

    async def decide(self, key: Key = None, cost: int = 1, priority: str | None = None) -> Decision:
        """Take ``cost`` if it is available, and return the decision with the use of the key.

        ``priority`` is as in :meth:`acquire`. A caller is refused while others of its class or a higher one
        wait for the key.
        """
        if (
            cost == 1
            and type(cost) is int
            and self._decide_now is not None
            and priority is None
            and not (contexts_entered and has_own_caller())
            and not (self._slow_keys and self._needs_flow(key))
        ):
            try:
                return self._decide_now(key._text if type(key) is LimitKey else key, 1)
            except WouldBlock:
                pass
        return await run_async(self._flows.decide_flow(key, cost, resolve_caller(priority, None)))

    async def acquire_up_to(self, key: Key = None, cost: int = 1, priority: str | None = None) -> int:
        """Take as much of ``cost`` as is available now, in one step, and return how much was granted.

        ``cost`` may be above the capacity. Units that a worker has leased do not count as available, nor do
        the units that the class (``priority``) leaves to higher classes.
        """
        caller = resolve_caller(priority, None)
        return await run_async(self._flows.acquire_up_to_flow(key, cost, caller))

    def limit(
        self, key: Key | Callable[..., Key] = None, cost: int = 1, timeout: float | None = 0
    ) -> LimitBlock:
        """Return a guard for a block, ``async with limiter.limit(key):``, or a decorator of functions.

        It takes ``cost`` before the block or call begins, waiting up to ``timeout`` seconds, and raises
        ``LimitReachedError`` if the limit refuses. For a decorator, ``key`` may be a function that receives
        the arguments of the call and returns the key.
        """
        return LimitBlock(self._flows, key, cost, timeout)

    async def peek(self, key: Key = None, cost: int = 1, priority: str | None = None) -> Decision:
        """Return what ``decide`` would return, ignoring waiters of this process, and take nothing."""
        return await run_async(self._flows.peek_flow(key, cost, resolve_caller(priority, None)))

    async def release(self, key: Key = None, cost: int = 1) -> None:
        """Give back units that you took and did not use."""
        await run_async(self._flows.release_flow(key, cost))

    async def settle(self, key: Key, reserved: int, used: int, granted_at: float | None = None) -> bool:
        """Credit or debit the difference between what you acquired for a call and what it really cost.

        ``granted_at`` is when ``acquire`` returned, by ``time.monotonic()``; the default is now. A credit for
        a window that has ended is void, and debt is at most one capacity. Returns whether the use of the key
        changed.
        """
        return await run_async(self._budget.settle_flow(key, reserved, used, granted_at))

    @asynccontextmanager
    async def reserve(
        self, key: Key = None, cost: int = 1, timeout: float | None = 0
    ) -> AsyncIterator[Reservation]:
        """Take an estimate for a block, and settle it if the block sets ``used``.

        ::

            async with limiter.reserve("user:42", 1200, timeout=5) as budget:
                answer = await ask(prompt)
                budget.used = answer.total_tokens

        Raises :class:`comporta.LimitReachedError` if the estimate is not granted within ``timeout`` seconds.
        If the block raises an exception, the estimate stays spent.
        """
        reservation = await run_async(self._budget.reserve_flow(key, cost, timeout))
        yield reservation
        await run_async(self._budget.settle_reservation_flow(key, reservation))

    async def reset(self, key: Key = None) -> None:
        """Delete the state of a key, as if it had never been used."""
        await run_async(self._flows.reset_flow(key))

    async def stats(self, key: Key = None) -> Stats:
        """Return what is available and what all workers were granted in the last minute."""
        return await run_async(self._flows.stats_flow(key))

    async def set_limit(self, limit: LimitConfig | str | None) -> None:
        """Override the limit, burst included, for the next decision of every worker.

        On a Redis cluster keys follow within 1 s. The override lasts until the next one, or until you revoke
        it with ``None``.
        """
        await run_async(self._flows.overrides.set_limit_flow(limit))

    async def pause(self, seconds: float) -> None:
        """Refuse every request of every worker for ``seconds``, at most a day.

        A longer pause that is already in effect is not shortened; 0 ends the pause. Afterwards the limit
        continues with its current state, and waiting callers retry at slightly different times.
        """
        await run_async(self._flows.overrides.pause_flow(seconds))

    async def resume(self) -> None:
        """End a pause."""
        await run_async(self._flows.overrides.resume_flow())

    async def aclose(self) -> None:
        """Return leased units and close the store's connections; the limiter reopens them when needed."""
        await run_async(self._budget.settlements.flush_flow())
        if self._flows.lease_client is not None:
            await run_async(self._flows.lease_client.return_all_flow())
        await self.store.aclose()


class TokenBucketLimiter(BaseLimiter):
    """A limiter with a rate, and a burst that accumulates while nothing is taken."""

    _fixed_strategy = LimitStrategy.TOKEN_BUCKET


class FixedWindowLimiter(BaseLimiter):
    """A limiter with a number of units per window, counted from the first request of the window."""

    _fixed_strategy = LimitStrategy.FIXED_WINDOW


class SlidingWindowLimiter(BaseLimiter):
    """A limiter with a number of units in any interval as long as the window."""

    _fixed_strategy = LimitStrategy.SLIDING_WINDOW


class LeakyBucketLimiter(BaseLimiter):
    """A limiter that spaces grants evenly and keeps a queue of bounded length."""

    _fixed_strategy = LimitStrategy.LEAKY_BUCKET


class RedisLimiter(BaseLimiter):
    """A limiter of any strategy that a fleet shares through Redis or Valkey."""

    def __init__(
        self,
        config: LimitConfig | str,
        redis_url: str,
        name: str | None = None,
        *,
        limit_for: LimitFor | None = None,
    ) -> None:
        super().__init__(config, redis_url, name, limit_for=limit_for)


def _restore_limiter(
    limiter_type: type[BaseLimiter],
    config: LimitConfig,
    address: str,
    name: str,
    limit_for: LimitFor | None,
) -> BaseLimiter:
    """Return this process's limiter of a name, or a new one with the same configuration."""
    limiter = _LIVE.get().find(address, name)
    if limiter is not None and limiter.config == config:
        return limiter
    limiter = limiter_type.__new__(limiter_type)
    BaseLimiter.__init__(limiter, config, store_at(address), name, limit_for=limit_for)
    return limiter


def _bind_limit(config: LimitConfig, store: Store, definition: LimitDefinition) -> BoundLimit:
    """Tie the limit's strategy to its store."""
    override = StateKey(OVERRIDE_SPACE, definition.name, RECORD)
    binding = Binding(
        definition.strategy, definition.space, override, normalize_key, partial(AcquireOperation, definition)
    )
    bound: BoundLimit = store.bind(binding) or RemoteBoundLimit(store, definition)

    def current_strategy() -> Strategy:
        strategy: Strategy = bound.cached_algorithm
        return strategy

    definition.current_strategy = current_strategy
    return bound if config.lease is False else LeaseClient(bound, store, definition, config.lease_us)


def _default_name(config: LimitConfig) -> str:
    """Return a name that only limits with the same numbers share."""
    strategy = strategy_type(config.strategy_name)
    pace = config.window or 0 if strategy.needs_window else config.rate
    number = repr(float(pace)).removesuffix(".0")
    return f"{strategy.short_name or strategy.name}-{number}-{config.capacity}".replace("+", "")
