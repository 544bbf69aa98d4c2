"""The face of a limit: ``await limiter.acquire(key)``, or ``limiter.sync.acquire(key)``.

A limiter ties a configuration to a store under a name. It decides nothing itself: a rule does, inside the
store. A single decision takes a direct path; everything else is a flow (``verbs.py``).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from comporta.flow import run, run_async
from comporta.limits.config import WINDOWS, LimitConfig, LimitStrategy
from comporta.limits.decision import Decision, Stats
from comporta.limits.leased import LeasedBound
from comporta.limits.remote import GuardedBound, RemoteBound, bind
from comporta.limits.rule import Rule
from comporta.limits.take import Asked
from comporta.limits.verbs import Key, Verbs
from comporta.names import checked_name
from comporta.stores.base import Bound, Busy, LocalStore, Store
from comporta.stores.failover import FailoverStore, Fallback, fallback_of
from comporta.stores.urls import default_url, store_of

_in_use: WeakKeyDictionary[Store, WeakValueDictionary[str, BaseLimiter]] = WeakKeyDictionary()


class BaseLimiter:
    """A limit shared by whoever uses the same state and name.

    ``config`` is a :class:`LimitConfig` or text such as ``"10/s"``. ``state`` is a URL or a store; left
    out it is this limiter alone, or for a distributed limit what the environment says. ``name``
    identifies the limit in its state; left out it is made from the configuration. A key of ``None`` is
    the limit as a whole.
    """

    fixed_strategy: ClassVar[LimitStrategy | None] = None

    def __init__(
        self, config: LimitConfig | str, state: str | Store | None = None, name: str | None = None
    ) -> None:
        self.config = LimitConfig.of(config, self.fixed_strategy)
        self.name = _made_name(self.config) if name is None else checked_name(name)
        if state is None:
            state = default_url(distributed=self.config.distributed)
        self.store = store_of(state)
        _claim(self)
        asked = Asked(self.config.rule(), self.name, self.config.fallback)
        bound = _bound(self.config, self.store, asked)
        leases = bound if isinstance(bound, LeasedBound) else None
        self.verbs = Verbs(self.config, self.store, self.name, bound, known=asked.known, leases=leases)
        self._waiting = self.verbs.lines.by_key
        self._attempt = None if isinstance(bound, RemoteBound) else bound.attempt
        self._take_async = bound.take_async
        self.sync = SyncLimiter(self.verbs)

    @property
    def fallback(self) -> Fallback | None:
        """Since when and why this worker is on its own; nothing if it is not."""
        return fallback_of(self.store)

    @property
    def strategy(self) -> LimitStrategy:
        """How this limit counts."""
        return self.config.strategy

    async def acquire(self, key: Key = None, cost: int = 1, timeout: float | None = 0) -> bool:
        """Take ``cost`` from the limit of a key; true if it was there.

        ``timeout`` is how many seconds to wait for it: 0 not at all, ``None`` without bound. Those who
        wait in this process are served in the order in which they came.
        """
        if timeout == 0 and cost == 1 and not self._waiting:
            if self._attempt is not None:
                try:
                    return not self._attempt(key, 1)
                except Busy:
                    pass
            return not await self._take_async(key, 1)
        return await run_async(self.verbs.acquire(key, cost, timeout))

    async def decide(self, key: Key = None, cost: int = 1) -> Decision:
        """Take ``cost`` if it is there, and tell how the key stands then."""
        return await run_async(self.verbs.decide(key, cost))

    async def peek(self, key: Key = None) -> Decision:
        """Tell how a key stands, taking nothing; allowed if there is anything left."""
        return await run_async(self.verbs.peek(key))

    async def release(self, key: Key = None, cost: int = 1) -> None:
        """Give back what was taken and not used."""
        await run_async(self.verbs.release(key, cost))

    async def reset(self, key: Key = None) -> None:
        """Forget all about a key: it is as if never used."""
        await run_async(self.verbs.reset(key))

    async def stats(self, key: Key = None) -> Stats:
        """Tell what is available and what was granted in the last minute, by all who share the state."""
        return await run_async(self.verbs.stats(key))

    async def change(self, limit: LimitConfig | str | None) -> None:
        """Change the limit for all who share it, burst included, from their next decision on.

        It lasts until it is changed again or, with ``None``, revoked.
        """
        await run_async(self.verbs.change(limit))

    async def pause(self, seconds: float) -> None:
        """Let nothing pass for so many seconds, a day at the most, for all who share the limit.

        A pause that ends later stays as it is; 0 ends it. Afterwards the limit goes on with what it holds,
        and those who waited come back a little apart from each other.
        """
        await run_async(self.verbs.pause(seconds))

    async def resume(self) -> None:
        """End a pause."""
        await run_async(self.verbs.resume())

    async def aclose(self) -> None:
        """Give back what is on lease, and close the store's connections; they open again when needed."""
        if self.verbs.leases is not None:
            await run_async(self.verbs.leases.giving_back())
        if hasattr(self.store, "aclose"):
            await self.store.aclose()


class SyncLimiter:
    """The verbs of a limiter, blocking: ``limiter.sync``."""

    __slots__ = ("_attempt", "_take", "_verbs", "_waiting")

    def __init__(self, verbs: Verbs) -> None:
        self._verbs = verbs
        self._waiting = verbs.lines.by_key
        self._attempt = verbs.bound.take if isinstance(verbs.bound, RemoteBound) else verbs.bound.attempt
        self._take = verbs.bound.take

    def acquire(self, key: Key = None, cost: int = 1, timeout: float | None = 0) -> bool:
        """Take ``cost`` from the limit of a key; true if it was there within ``timeout`` seconds."""
        if timeout == 0 and cost == 1 and not self._waiting:
            try:
                return not self._attempt(key, 1)
            except Busy:
                return not self._take(key, 1)
        return run(self._verbs.acquire(key, cost, timeout))

    def decide(self, key: Key = None, cost: int = 1) -> Decision:
        """Take ``cost`` if it is there, and tell how the key stands then."""
        return run(self._verbs.decide(key, cost))

    def peek(self, key: Key = None) -> Decision:
        """Tell how a key stands, taking nothing; allowed if there is anything left."""
        return run(self._verbs.peek(key))

    def release(self, key: Key = None, cost: int = 1) -> None:
        """Give back what was taken and not used."""
        run(self._verbs.release(key, cost))

    def reset(self, key: Key = None) -> None:
        """Forget all about a key: it is as if never used."""
        run(self._verbs.reset(key))

    def stats(self, key: Key = None) -> Stats:
        """Tell what is available and what was granted in the last minute, by all who share the state."""
        return run(self._verbs.stats(key))

    def change(self, limit: LimitConfig | str | None) -> None:
        """Change the limit for all who share it; ``None`` revokes the change."""
        run(self._verbs.change(limit))

    def pause(self, seconds: float) -> None:
        """Let nothing pass for so many seconds, for all who share the limit."""
        run(self._verbs.pause(seconds))

    def resume(self) -> None:
        """End a pause."""
        run(self._verbs.resume())


class TokenBucketLimiter(BaseLimiter):
    """A rate, and a burst saved up while nothing was asked for."""

    fixed_strategy = LimitStrategy.TOKEN_BUCKET


class FixedWindowLimiter(BaseLimiter):
    """So many per window, counted from its first request."""

    fixed_strategy = LimitStrategy.FIXED_WINDOW


class SlidingWindowLimiter(BaseLimiter):
    """So many in any interval as long as the window."""

    fixed_strategy = LimitStrategy.SLIDING_WINDOW


class LeakyBucketLimiter(BaseLimiter):
    """Evenly spaced, with a queue of bounded length for those who wait."""

    fixed_strategy = LimitStrategy.LEAKY_BUCKET


class RedisLimiter(BaseLimiter):
    """Any strategy, shared by a fleet through Redis or Valkey."""

    def __init__(self, config: LimitConfig | str, redis_url: str, name: str | None = None) -> None:
        super().__init__(config, redis_url, name)


def _bound(config: LimitConfig, store: Store, asked: Asked) -> Bound:
    """Tie the limit's rule to its store."""
    bound: Bound
    if hasattr(store, "bind"):
        bound = bind(cast(LocalStore, store), asked)
        asked.known = partial(_rule_of, bound)
    elif isinstance(store, FailoverStore) and store.local:
        bound = GuardedBound(store, asked)
    else:
        bound = RemoteBound(store, asked)
    return bound if config.lease is False else LeasedBound(bound, store, asked, config)


def _rule_of(bound: Bound) -> Rule:
    """Return the rule in force, as this process last saw it, without waiting for anybody."""
    return cast(Rule, getattr(bound, "known", None) or bound.stepper)


def _made_name(config: LimitConfig) -> str:
    """Return a name that only limits of the same numbers get."""
    pace = config.window or 0 if config.strategy in WINDOWS else config.rate
    kind, number = config.strategy.value.partition("_")[0], repr(float(pace)).removesuffix(".0")
    return f"{kind}-{number}-{config.capacity}".replace("+", "")


def _claim(limiter: BaseLimiter) -> None:
    """Refuse a name that means something else on the same state in this program."""
    names = _in_use.setdefault(limiter.store, WeakValueDictionary())
    other = names.get(limiter.name)
    if other is not None and other.config != limiter.config:
        raise ValueError(
            f"name {limiter.name!r} is in use on this state for {other.config}, got {limiter.config}: "
            "choose another name, or change() the limit there is"
        )
    names[limiter.name] = limiter
