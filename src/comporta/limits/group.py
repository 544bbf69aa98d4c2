"""Several limits in one decision: all of them are charged in one step, or none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from comporta.clock import to_us
from comporta.errors import LimitReachedError, StateError
from comporta.flow import Flow, run, run_async
from comporta.limits.arguments import check_timeout
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.budgets.settlements import Settlement, Settlements, settle_all_flow
from comporta.limits.claims import ClaimAttempt
from comporta.limits.config import LimitConfig, Limits, split_limits
from comporta.limits.cost import Cost, GroupUnits, cost_amounts
from comporta.limits.decision import Decision, decision_from_reply
from comporta.limits.flows import Key
from comporta.limits.key import LimitKey, normalize_key
from comporta.limits.limiter import BaseLimiter
from comporta.limits.operation import LimitOperation
from comporta.limits.priority import Caller, resolve_caller
from comporta.limits.reply import LimitReply
from comporta.limits.wait_order import Pace
from comporta.limits.wait_queue import WaitQueue, wait_flow
from comporta.stores.base import Store
from comporta.stores.effects import Apply
from comporta.stores.live_objects import require_picklable
from comporta.stores.records import NEVER_US
from comporta.stores.registry import default_url, resolve_store

LIMITS_MAX = 16

Keys = Key | Sequence[Key]
"""One key for every limit of a group, or one for each of its limiters."""


class LimitGroup:
    """Limits on one store that apply together, such as a total and a limit for each user.

    ::

        both = LimitGroup(total, each_user)
        await both.acquire([None, "user:42"], timeout=1)

        provider = LimitGroup(limit={"requests": "10/s", "tokens": "100000/minute"}, name="provider")
        await provider.acquire("user:42", cost={"requests": 1, "tokens": 1200})

    Pass limiters, or ``limit``: a list of limits, limits by name, or text such as ``"10/s; 1000/day"``. Then
    the group creates their limiters on ``state`` under ``name``, and every limit has the same key. A cost is
    a number for every limit or numbers by name; a limit that is left out costs 1. ``sync`` has the same
    methods for blocking code.
    """

    def __init__(
        self,
        *limiters: BaseLimiter,
        limit: Limits | None = None,
        state: str | Store | None = None,
        name: str = "group",
    ) -> None:
        self._has_one_key = limit is not None
        if limit is None:
            self._names = tuple(limiter.name for limiter in limiters)
        elif limiters:
            raise ValueError("limit must not be combined with limiters: pass either")
        else:
            parts = split_limits(limit, name)
            self._names, limiters = tuple(parts), _make_limiters(list(parts.values()), state)
        if not 1 <= len(limiters) <= LIMITS_MAX:
            raise ValueError(f"limiters must be 1 to {LIMITS_MAX}, got {len(limiters)}")
        if any(limiter.store is not limiters[0].store for limiter in limiters):
            raise ValueError("limiters must share one store, got several: give all the same state URL")
        if len({limiter.name for limiter in limiters}) < len(limiters):
            names = ", ".join(limiter.name for limiter in limiters)
            raise ValueError(f"limiters must have different names, got {names}")
        self._limiters = limiters
        self._store = limiters[0].store
        self._wait_queue = WaitQueue()
        self._settlements = Settlements(self._store, limiters[0].name)
        self.sync = SyncLimitGroup(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the limiters by name: another process decides on the same states."""
        require_picklable(f"the group of {', '.join(self._names)}", self._store)
        return _restore_group, (self._limiters, self._names, self._has_one_key)

    @property
    def limiters(self) -> dict[str, BaseLimiter]:
        """The limiters by the names that costs use."""
        return dict(zip(self._names, self._limiters, strict=True))

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

        ``priority`` and ``owner`` are those of :meth:`BaseLimiter.acquire`.
        """
        caller = resolve_caller(priority, owner)
        return await run_async(self._acquire_flow(keys, cost, timeout, caller))

    async def decide(self, keys: Keys, cost: Cost = 1, *, priority: str | None = None) -> Decision:
        """Take ``cost`` from every limit or from none; return the decision of the most restrictive limit."""
        return await run_async(self._decide_flow(keys, cost, resolve_caller(priority, None)))

    async def release(self, keys: Keys, cost: Cost = 1) -> None:
        """Give ``cost`` back to every limit."""
        await run_async(self._release_flow(keys, cost))

    async def settle(self, keys: Keys, reserved: Cost, used: Cost, granted_at: float | None = None) -> bool:
        """Credit or debit each limit what a call cost less or more than you acquired for it.

        A limit that ``used`` leaves out stays as it is. See :meth:`BaseLimiter.settle`.
        """
        return await run_async(self._settle_flow(keys, reserved, used, granted_at))

    @asynccontextmanager
    async def reserve(
        self, keys: Keys, cost: Cost = 1, timeout: float | None = 0
    ) -> AsyncIterator[Reservation]:
        """Take an estimate from every limit for the block, and settle it when the block has set ``used``.

        Raises :class:`comporta.LimitReachedError` if the estimate is not granted within ``timeout`` seconds.
        """
        reservation = await run_async(self._reserve_flow(keys, cost, timeout))
        yield reservation
        await run_async(self._settle_reservation_flow(keys, reservation))

    async def aclose(self) -> None:
        """Send what waits to be settled and close the store's connections; they reopen when needed."""
        await run_async(self._settlements.flush_flow())
        await self._store.aclose()

    def _acquire_flow(
        self, keys: Keys, cost: Cost, timeout: float | None, caller: Caller | None = None
    ) -> Flow[bool]:
        caller = resolve_caller(None, None) if caller is None else caller
        texts, amounts = self._normalize_keys(keys), self._amounts(cost)
        check_timeout(timeout)
        yield from self._check_cost_flow(texts, amounts)
        waits_us: list[int] = []
        queue_key, clock = "\0".join(texts), self._store.clock
        if timeout == 0:
            if not self._wait_queue.is_empty(queue_key, caller.rank):
                return False  # the waiting callers came first
            return (yield from self._try_acquire_flow(texts, amounts, caller.rank, None, waits_us)) == 0
        deadline_us = NEVER_US if timeout is None else clock.now_ns() // 1000 + to_us(timeout)
        return (
            yield from wait_flow(
                self._wait_queue,
                partial(self._try_acquire_flow, texts, amounts, caller.rank, deadline_us, waits_us),
                clock,
                queue_key,
                timeout,
                jitter_us=self._pause_jitter_us,
                cost=GroupUnits(amounts),
                pace_after=lambda now_us, _: self._pace(texts, amounts, now_us, waits_us),
                caller=caller,
            )
        )

    def _decide_flow(self, keys: Keys, cost: Cost, caller: Caller | None = None) -> Flow[Decision]:
        rank = (resolve_caller(None, None) if caller is None else caller).rank
        texts, amounts = self._normalize_keys(keys), self._amounts(cost)
        yield from self._check_cost_flow(texts, amounts)
        operation = yield from self._passing_operation_flow(texts, amounts, rank)
        replies: list[LimitReply] = yield Apply(self._store, operation)
        would_refuse = self._count_would_refuse(operation, replies)
        known = list(zip(operation.demands, replies, strict=True))
        in_force = [reply for demand, reply in known if not demand.shadow] or replies
        most_restrictive = max(in_force, key=lambda reply: (reply.wait_us, -reply.remaining))
        allowed = operation.binding_wait_us([reply.wait_us for reply in replies]) == 0
        decision = decision_from_reply(most_restrictive, allowed=allowed)
        return decision._replace(retry_after=0.0, would_refuse=True) if would_refuse else decision

    def _count_would_refuse(self, operation: LimitOperation, replies: Sequence[LimitReply]) -> bool:
        """Count a grant that limits in shadow mode would have refused; return whether any would."""
        if operation.binding_wait_us([reply.wait_us for reply in replies]):
            return False
        would_refuse = False
        for limiter, demand, reply in zip(self._limiters, operation.demands, replies, strict=True):
            shadow = limiter._flows.flows_of(demand.key).shadow
            if shadow is not None and reply.wait_us:
                shadow.count_would_refuse()
                would_refuse = True
        return would_refuse

    def _release_flow(self, keys: Keys, cost: Cost) -> Flow[None]:
        texts, amounts = self._normalize_keys(keys), self._amounts(cost)
        operation = yield from self._operation_flow(texts, [-amount for amount in amounts])
        yield Apply(self._store, operation)
        self._wait_queue.wake_first("\0".join(texts))

    def _settle_flow(self, keys: Keys, reserved: Cost, used: Cost, granted_at: float | None) -> Flow[bool]:
        texts = self._normalize_keys(keys)
        taken = cost_amounts("reserved", reserved, self._names, self._ones)
        spent = cost_amounts("used", used, self._names, taken)
        settlements = yield from self._settlements_flow(texts, taken, spent, granted_at)
        replies = yield from settle_all_flow(self._store, settlements)
        for reply in replies:
            if isinstance(reply, StateError):
                raise reply
        return any(replies)

    def _reserve_flow(self, keys: Keys, cost: Cost, timeout: float | None) -> Flow[Reservation]:
        if not (yield from self._acquire_flow(keys, cost, timeout)):
            decision = yield from self._decide_flow(keys, cost)
            if not decision.allowed:
                raise self._refusal_error(decision, cost)
        return Reservation(cost, self._store.clock.now_ns() / 1e9, self._names, self._amounts(cost))

    def _refusal_error(self, decision: Decision, cost: Cost) -> LimitReachedError:
        name = self._limiters[0].name
        text = f"{name}: the limits {', '.join(self._names)} had no capacity for {cost} in time"
        return LimitReachedError(text, name, decision.retry_after)

    def _settle_reservation_flow(self, keys: Keys, reservation: Reservation) -> Flow[None]:
        texts, taken = self._normalize_keys(keys), reservation.reserved_amounts
        settlements = yield from self._settlements_flow(
            texts, taken, reservation.used_amounts, reservation.granted_at
        )
        if settlements:
            yield from self._settlements.send_soon_flow(settlements)

    def _settlements_flow(
        self, texts: Sequence[str], taken: Sequence[int], spent: Sequence[int], granted_at: float | None
    ) -> Flow[list[Settlement]]:
        settlements = []
        wake = partial(self._wait_queue.wake_first, "\0".join(texts))
        for limiter, text, reserved, used in zip(self._limiters, texts, taken, spent, strict=True):
            settlement = yield from limiter._budget.settlement_flow(text, reserved, used, granted_at)
            if settlement is not None:
                settlements.append(Settlement(settlement.operation, wake))
        return settlements

    def _check_cost_flow(self, texts: Sequence[str], amounts: Sequence[int]) -> Flow[None]:
        """Raise for a cost that one of the limits could never grant."""
        for limiter, text, amount in zip(self._limiters, texts, amounts, strict=True):
            yield from limiter._flows.check_cost_flow(text, amount)

    def _passing_operation_flow(
        self, texts: Sequence[str], amounts: Sequence[int], rank: int
    ) -> Flow[LimitOperation]:
        """Return the operation of a caller that does not wait."""
        return (yield from self._operation_flow(texts, amounts, rank, self._attempt(texts, rank, None)))

    def _attempt(self, texts: Sequence[str], rank: int, deadline_us: int | None) -> ClaimAttempt | None:
        """Return the place of a caller among the waiters of all processes.

        Without a deadline it does not wait.
        """
        if not self._store.shared:
            return None
        if deadline_us is None:
            return ClaimAttempt(0, rank)
        now_us = self._store.clock.now_ns() // 1000
        return self._wait_queue.claim_attempt("\0".join(texts), rank, now_us, deadline_us)

    def _try_acquire_flow(
        self,
        texts: Sequence[str],
        amounts: Sequence[int],
        rank: int,
        deadline_us: int | None,
        waits_us: list[int],
    ) -> Flow[int]:
        """Take from every limit or from none; ``waits_us`` gets the wait of each limit."""
        attempt = self._attempt(texts, rank, deadline_us)
        operation = yield from self._operation_flow(texts, amounts, rank, attempt)
        replies: list[LimitReply] = yield Apply(self._store, operation)
        self._count_would_refuse(operation, replies)
        demands = operation.demands
        waits_us[:] = [
            0 if demand.shadow else reply.wait_us for demand, reply in zip(demands, replies, strict=True)
        ]
        return max(waits_us)

    def _pace(
        self, texts: Sequence[str], amounts: Sequence[int], now_us: int, waits_us: Sequence[int]
    ) -> Pace:
        """Return when all limits have granted some units; a limit that refused nothing may grant any."""
        paces = [
            limiter._flows.flows_of(text).pace_after(amount, now_us, wait_us) if wait_us else None
            for limiter, text, amount, wait_us in zip(self._limiters, texts, amounts, waits_us, strict=True)
        ]

        def pace(units: GroupUnits) -> int:
            by_limit = zip(paces, units.amounts, strict=True)
            return max(each(amount) for each, amount in by_limit if each is not None)

        return pace

    def _pause_jitter_us(self) -> int:
        return max(limiter._flows.overrides.pause_jitter_us() for limiter in self._limiters)

    def _operation_flow(
        self,
        texts: Sequence[str],
        amounts: Sequence[int],
        rank: int | None = None,
        attempt: ClaimAttempt | None = None,
    ) -> Flow[LimitOperation]:
        """Return one operation on all limits; a limit that costs nothing must not be paused either."""
        demands = []
        for limiter, text, amount in zip(self._limiters, texts, amounts, strict=True):
            demands.append((yield from limiter._flows.demand_flow(text, amount, rank, attempt)))
        return LimitOperation(demands)

    @property
    def _ones(self) -> list[int]:
        return [1] * len(self._names)

    def _amounts(self, cost: Cost) -> list[int]:
        amounts = cost_amounts("cost", cost, self._names, self._ones)
        if not any(amounts):
            raise ValueError(f"cost must be at least 1 for one of the limits, got {cost!r:.100}")
        return amounts

    def _normalize_keys(self, keys: Keys) -> list[str]:
        if self._has_one_key and (keys is None or isinstance(keys, str | LimitKey)):
            return [normalize_key(keys)] * len(self._limiters)
        if keys is None or isinstance(keys, str | LimitKey) or len(keys) != len(self._limiters):
            raise ValueError(
                f"keys must be a list, one for each of {len(self._limiters)} limiters, got {keys!r:.100}"
            )
        return [normalize_key(key) for key in keys]


class SyncLimitGroup:
    """The methods of a group, blocking: ``group.sync``."""

    __slots__ = ("_group",)

    def __init__(self, group: LimitGroup) -> None:
        self._group = group

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to be pickled."""
        raise TypeError("group.sync cannot be pickled: pickle the group, and use its sync there")

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
        return run(self._group._acquire_flow(keys, cost, timeout, caller))

    def decide(self, keys: Keys, cost: Cost = 1, *, priority: str | None = None) -> Decision:
        """Take ``cost`` from every limit or from none; return the decision of the most restrictive limit."""
        return run(self._group._decide_flow(keys, cost, resolve_caller(priority, None)))

    def release(self, keys: Keys, cost: Cost = 1) -> None:
        """Give ``cost`` back to every limit."""
        run(self._group._release_flow(keys, cost))

    def settle(self, keys: Keys, reserved: Cost, used: Cost, granted_at: float | None = None) -> bool:
        """Credit or debit each limit what a call cost less or more than you acquired for it."""
        return run(self._group._settle_flow(keys, reserved, used, granted_at))

    @contextmanager
    def reserve(self, keys: Keys, cost: Cost = 1, timeout: float | None = 0) -> Iterator[Reservation]:
        """Take an estimate from every limit for the block, and settle it when the block has set ``used``."""
        reservation = run(self._group._reserve_flow(keys, cost, timeout))
        yield reservation
        run(self._group._settle_reservation_flow(keys, reservation))

    def close(self) -> None:
        """Send what waits to be settled and close the store's blocking connections; they reopen on use."""
        run(self._group._settlements.flush_flow())
        self._group._store.close_connections()


def _restore_group(
    limiters: tuple[BaseLimiter, ...], names: tuple[str, ...], has_one_key: bool
) -> LimitGroup:
    """Return a group of the limiters that this process has under the same names."""
    group = LimitGroup(*limiters)
    group._names, group._has_one_key = names, has_one_key
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
