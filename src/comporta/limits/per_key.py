"""Limits per key, for plans and tenants: ``limit_for`` gives a key's limit, from a table or a function.

Keys with the same limit share one bound limit, so that keys and tenants need no objects of their own. Each
distinct limit has its own name in the store, ``<name>.<strategy>-<numbers>``, so a key that moves to another
plan starts unused there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

from comporta import fork_safety
from comporta.flow import Flow
from comporta.limits.claims import ClaimAttempt
from comporta.limits.config import LimitConfig
from comporta.limits.decision import Decision, Stats
from comporta.limits.flows import Key, LimitFlows
from comporta.limits.key import LimitKey, normalize_key
from comporta.limits.operation import LimitDemand
from comporta.limits.overrides.flows import OverrideFlows
from comporta.limits.priority import Caller
from comporta.signatures import require_plain_function
from comporta.stores.bound_limit import Algorithm, BoundLimit, WouldBlock

LimitFor = Callable[[str], LimitConfig | str | None] | Mapping[Any, LimitConfig | str]
"""A table from keys to limits, or a function from the text of a key to its limit (``None``: the default)."""

LIMITS_MAX = 1000
"""How many different limits a limiter keeps ready; the least recently used one is dropped and made again."""

TABLE_KEYS_MAX = 100_000

_REFUSED_US = 1


class LimitTable:
    """Maps each key to the flows of its limit."""

    def __init__(
        self, default: LimitFlows, limit_for: LimitFor, make: Callable[[LimitConfig], LimitFlows]
    ) -> None:
        self.default = default
        self._make = make
        self._flows: OrderedDict[LimitConfig | str, LimitFlows] = OrderedDict()
        self._lock = Lock()
        fork_safety.reinit_lock_after_fork(self._lock)
        self._limit_of: Callable[[str], LimitConfig | str | None]
        if isinstance(limit_for, Mapping):
            self._limit_of = _checked_table(limit_for).get
            for key, limit in limit_for.items():
                self._find(str(key), limit)
        else:
            require_plain_function("limit_for", limit_for)
            self._limit_of = limit_for

    def flows_for(self, key: Key) -> LimitFlows:
        """Return the flows of a key's limit; the key ``None`` has the default limit."""
        if key is None:
            return self.default
        text = str(key) if isinstance(key, LimitKey) else key
        limit = self._limit_of(text)
        return self.default if limit is None else self._find(text, limit)

    def all_flows(self) -> list[LimitFlows]:
        """Return the flows of the default limit and of all others that this process knows."""
        with self._lock:
            return [self.default, *self._flows.values()]

    def _find(self, key: str, limit: LimitConfig | str) -> LimitFlows:
        with self._lock:
            flows = self._flows.get(limit)
            if flows is not None:
                self._flows.move_to_end(limit)
                return flows
        flows = self._build(key, limit)
        with self._lock:
            flows = self._flows.setdefault(limit, flows)
            if len(self._flows) > LIMITS_MAX:
                self._flows.popitem(last=False)
        return flows

    def _build(self, key: str, limit: LimitConfig | str) -> LimitFlows:
        default = self.default.config
        try:
            config = LimitConfig.coerce(limit) if isinstance(limit, LimitConfig) else None
            config = config or LimitConfig.parse(limit, default.strategy)  # type: ignore[arg-type]
            config = replace(
                config,
                fallback=default.fallback,
                closed_after=default.closed_after,
                lease=default.lease,
                shadow=default.shadow,
            )
            return self.default if config == default else self._make(config)
        except (TypeError, ValueError) as error:
            raise type(error)(f"limit_for has no usable limit for {key!r:.100}: {error}") from error


def _checked_table(table: Mapping[Any, LimitConfig | str]) -> dict[str, LimitConfig | str]:
    if len(table) > TABLE_KEYS_MAX:
        raise ValueError(f"limit_for must have at most {TABLE_KEYS_MAX} keys, got {len(table)}")
    for key in table:
        if not isinstance(key, str | LimitKey):
            raise TypeError(f"keys of limit_for must be a LimitKey or a str, got {key!r:.100}")
    return {str(key): limit for key, limit in table.items()}


class PerKeyBoundLimit(BoundLimit):
    """Limits tied to a store; the key selects one of them."""

    __slots__ = ("_table", "acquire", "try_acquire")

    decides_in_process = False  # a function of the program chooses the limit

    def __init__(self, table: LimitTable) -> None:
        self._table = table
        self.try_acquire = self._raise_would_block
        self.acquire = self._acquire

    @property
    def remote(self) -> Any:
        """The remote side of the default limit."""
        return self._table.default.bound.remote

    @property
    def leases(self) -> Any:
        """The lease client of the default limit."""
        return self._table.default.bound.leases

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the default limit."""
        return self._table.default.bound.algorithm

    async def algorithm_async(self) -> Algorithm:
        """Return the algorithm of the default limit."""
        return await self._table.default.bound.algorithm_async()

    @staticmethod
    def _raise_would_block(key: Any, cost: int) -> int:
        raise WouldBlock

    def _acquire(self, key: Any, cost: int) -> int:
        flows = self._table.flows_for(key)
        if flows.wait_queue.is_empty(normalize_key(key)):
            return flows.bound.acquire(key, cost)
        return _REFUSED_US  # callers that already wait go first

    def acquire_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Take from the limit of the key."""
        flows = self._table.flows_for(key)
        if flows.wait_queue.is_empty(normalize_key(key)):
            return flows.bound.acquire_async(key, cost)
        return _refuse()


async def _refuse() -> int:
    return _REFUSED_US


class PerKeyFlows(LimitFlows):
    """The flows of a limiter with ``limit_for``: each call uses the flows of the key's limit."""

    __slots__ = ("_table",)

    def __init__(self, table: LimitTable) -> None:
        default = table.default
        super().__init__(
            default.config,
            default.store,
            default.name,
            PerKeyBoundLimit(table),
            current_strategy=default.current_strategy,
            lease_client=default.lease_client,
        )
        self._table = table
        self.overrides = PerKeyOverrideFlows(table)

    def acquire_flow(
        self, key: Key, cost: int, timeout: float | None, caller: Caller | None = None
    ) -> Flow[bool]:
        """Take ``cost`` from the limit of the key."""
        return (yield from self._table.flows_for(key).acquire_flow(key, cost, timeout, caller))

    def acquire_up_to_flow(self, key: Key, cost: int, caller: Caller | None = None) -> Flow[int]:
        """Take as much of ``cost`` as the limit of the key has."""
        return (yield from self._table.flows_for(key).acquire_up_to_flow(key, cost, caller))

    def decide_flow(self, key: Key, cost: int, caller: Caller | None = None) -> Flow[Decision]:
        """Take ``cost`` from the limit of the key if it is available."""
        return (yield from self._table.flows_for(key).decide_flow(key, cost, caller))

    def peek_flow(self, key: Key, cost: int = 1, caller: Caller | None = None) -> Flow[Decision]:
        """Return what ``decide_flow`` would decide."""
        return (yield from self._table.flows_for(key).peek_flow(key, cost, caller))

    def release_flow(self, key: Key, cost: int) -> Flow[None]:
        """Give ``cost`` back to the limit of the key."""
        yield from self._table.flows_for(key).release_flow(key, cost)

    def reset_flow(self, key: Key) -> Flow[None]:
        """Delete the state of a key."""
        yield from self._table.flows_for(key).reset_flow(key)

    def stats_flow(self, key: Key) -> Flow[Stats]:
        """Return the numbers of the limit of the key."""
        return (yield from self._table.flows_for(key).stats_flow(key))

    def flows_of(self, text: str) -> LimitFlows:
        """Return the flows of the limit of the key."""
        return self._table.flows_for(text or None)

    def demand_flow(
        self, text: str, amount: int, rank: int | None = None, attempt: ClaimAttempt | None = None
    ) -> Flow[LimitDemand]:
        """Return the demand of an operation on the limit of the key."""
        return (yield from self.flows_of(text).demand_flow(text, amount, rank, attempt))

    def check_cost_flow(self, text: str, cost: int) -> Flow[None]:
        """Raise an error for a cost that the limit of the key can never grant."""
        yield from self.flows_of(text).check_cost_flow(text, cost)


class PerKeyOverrideFlows(OverrideFlows):
    """The overrides of a limiter with ``limit_for``: they change its default limit and pause all limits."""

    __slots__ = ("_table",)

    def __init__(self, table: LimitTable) -> None:
        super().__init__(table.default)
        self._table = table

    def pause_flow(self, seconds: float) -> Flow[None]:
        """Pause the default limit and every other limit that this process knows."""
        for flows in self._table.all_flows():
            yield from flows.overrides.pause_flow(seconds)

    def resume_flow(self) -> Flow[None]:
        """Resume the default limit and every other limit that this process knows."""
        for flows in self._table.all_flows():
            yield from flows.overrides.resume_flow()
