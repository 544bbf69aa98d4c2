"""Several limits in one decision: all of them are charged in one step, or none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from comporta.flow import run, run_async
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.config import LimitConfig, Limits, split_limits
from comporta.limits.cost import Cost
from comporta.limits.decision import Decision
from comporta.limits.group_flows import GroupFlows, Keys
from comporta.limits.limiter import BaseLimiter
from comporta.limits.priority import resolve_caller
from comporta.stores.base import Store
from comporta.stores.live_objects import require_picklable
from comporta.stores.registry import default_url, resolve_store

LIMITS_MAX = 16


class LimitGroup:
    """Limits on one store that apply together, such as a total and a limit for each user.

    ::

        both = LimitGroup(total, each_user)
        await both.acquire([None, "user:42"], timeout=1)

        provider = LimitGroup(limit={"requests": "10/s", "tokens": "100000/minute"}, name="provider")
        await provider.acquire("user:42", cost={"requests": 1, "tokens": 1200})

    Pass limiters, or ``limit``: a list of limits, limits by name, or text such as ``"10/s; 1000/day"``. With
    ``limit``, the group creates the limiters on ``state`` under ``name``, and every limit has the same key. A
    cost is one number for every limit, or a number for each name; a limit that is left out costs 1. ``sync``
    has the same methods for blocking code.
    """

    def __init__(
        self,
        *limiters: BaseLimiter,
        limit: Limits | None = None,
        state: str | Store | None = None,
        name: str = "group",
    ) -> None:
        if limit is None:
            names = tuple(limiter.name for limiter in limiters)
        elif limiters:
            raise ValueError("limit must not be combined with limiters: pass either")
        else:
            parts = split_limits(limit, name)
            names, limiters = tuple(parts), _make_limiters(list(parts.values()), state)
        if not 1 <= len(limiters) <= LIMITS_MAX:
            raise ValueError(f"limiters must be 1 to {LIMITS_MAX}, got {len(limiters)}")
        if any(limiter.store is not limiters[0].store for limiter in limiters):
            raise ValueError("limiters must share one store, got several: give all the same state URL")
        if len({limiter.name for limiter in limiters}) < len(limiters):
            given = ", ".join(limiter.name for limiter in limiters)
            raise ValueError(f"limiters must have different names, got {given}")
        self._flows = GroupFlows(limiters, names, has_one_key=limit is not None)
        self.sync = SyncLimitGroup(self._flows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the limiters by name, so that another process decides on the same states."""
        flows = self._flows
        require_picklable(f"the group of {', '.join(flows.names)}", flows.store)
        return _restore_group, (flows.limiters, flows.names, flows.has_one_key)

    @property
    def limiters(self) -> dict[str, BaseLimiter]:
        """The limiters by the names that costs use."""
        return dict(zip(self._flows.names, self._flows.limiters, strict=True))

    async def acquire(
        self,
        keys: Keys,
        cost: Cost = 1,
        timeout: float | None = 0,
        *,
        priority: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Take ``cost`` from every limit or from none; ``keys`` are in the order of the limiters.

        ``priority`` and ``owner`` are as in :meth:`BaseLimiter.acquire`.
        """
        caller = resolve_caller(priority, owner)
        return await run_async(self._flows.acquire_flow(keys, cost, timeout, caller))

    async def decide(self, keys: Keys, cost: Cost = 1, *, priority: str | None = None) -> Decision:
        """Take ``cost`` from every limit or from none; return the decision of the most restrictive limit."""
        return await run_async(self._flows.decide_flow(keys, cost, resolve_caller(priority, None)))

    async def release(self, keys: Keys, cost: Cost = 1) -> None:
        """Give ``cost`` back to every limit."""
        await run_async(self._flows.release_flow(keys, cost))

    async def settle(self, keys: Keys, reserved: Cost, used: Cost, granted_at: float | None = None) -> bool:
        """Credit or debit each limit with the difference between what you acquired and what the call cost.

        A limit that ``used`` leaves out is not changed. See :meth:`BaseLimiter.settle`.
        """
        return await run_async(self._flows.settle_flow(keys, reserved, used, granted_at))

    @asynccontextmanager
    async def reserve(
        self, keys: Keys, cost: Cost = 1, timeout: float | None = 0
    ) -> AsyncIterator[Reservation]:
        """Take an estimate from every limit for a block, and settle it if the block sets ``used``.

        Raises :class:`comporta.LimitReachedError` if the estimate is not granted within ``timeout`` seconds.
        """
        reservation = await run_async(self._flows.reserve_flow(keys, cost, timeout))
        yield reservation
        await run_async(self._flows.settle_reservation_flow(keys, reservation))

    async def aclose(self) -> None:
        """Send pending settlements and close the store's connections; they reopen when needed."""
        await run_async(self._flows.settlements.flush_flow())
        await self._flows.store.aclose()


class SyncLimitGroup:
    """The methods of a group, blocking: ``group.sync``."""

    __slots__ = ("_flows",)

    def __init__(self, flows: GroupFlows) -> None:
        self._flows = flows

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to be pickled."""
        raise TypeError("group.sync cannot be pickled: pickle the group and use its .sync there")

    def acquire(
        self,
        keys: Keys,
        cost: Cost = 1,
        timeout: float | None = 0,
        *,
        priority: str | None = None,
        owner: str | None = None,
    ) -> bool:
        """Take ``cost`` from every limit or from none."""
        caller = resolve_caller(priority, owner)
        return run(self._flows.acquire_flow(keys, cost, timeout, caller))

    def decide(self, keys: Keys, cost: Cost = 1, *, priority: str | None = None) -> Decision:
        """Take ``cost`` from every limit or from none; return the decision of the most restrictive limit."""
        return run(self._flows.decide_flow(keys, cost, resolve_caller(priority, None)))

    def release(self, keys: Keys, cost: Cost = 1) -> None:
        """Give ``cost`` back to every limit."""
        run(self._flows.release_flow(keys, cost))

    def settle(self, keys: Keys, reserved: Cost, used: Cost, granted_at: float | None = None) -> bool:
        """Credit or debit each limit with the difference between what you acquired and what the call cost."""
        return run(self._flows.settle_flow(keys, reserved, used, granted_at))

    @contextmanager
    def reserve(self, keys: Keys, cost: Cost = 1, timeout: float | None = 0) -> Iterator[Reservation]:
        """Take an estimate from every limit for a block, and settle it if the block sets ``used``."""
        reservation = run(self._flows.reserve_flow(keys, cost, timeout))
        yield reservation
        run(self._flows.settle_reservation_flow(keys, reservation))

    def close(self) -> None:
        """Send pending settlements and close the store's blocking connections; they reopen when needed."""
        run(self._flows.settlements.flush_flow())
        self._flows.store.close_connections()


def _restore_group(
    limiters: tuple[BaseLimiter, ...], names: tuple[str, ...], has_one_key: bool
) -> LimitGroup:
    """Return a group of the limiters that this process has under the same names."""
    group = LimitGroup(*limiters)
    group._flows.names, group._flows.has_one_key = names, has_one_key
    return group


def _make_limiters(
    parts: Sequence[tuple[str, LimitConfig | str]], state: str | Store | None
) -> tuple[BaseLimiter, ...]:
    """Return a limiter for each limit, all on one store."""
    if state is None:
        configs = [LimitConfig.coerce(limit) for _, limit in parts]
        state = default_url(distributed=any(config.distributed for config in configs))
    store = resolve_store(state)
    return tuple(BaseLimiter(limit, store, name) for name, limit in parts)
