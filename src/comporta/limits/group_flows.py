"""Every method of a limit group, implemented once for blocking and async callers.

All limits of a group are charged in one operation on their store, or none is. ``group.py`` has the classes
that users call.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from comporta.clock import to_us
from comporta.errors import LimitReachedError, StateError
from comporta.flow import Flow
from comporta.limits.arguments import check_timeout
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.budgets.settlements import Settlement, Settlements, settle_all_flow
from comporta.limits.claims import ClaimAttempt
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
from comporta.stores.effects import Apply
from comporta.stores.records import NEVER_US

Keys = Key | Sequence[Key]
"""One key for every limit of a group, or one for each of its limiters."""


class GroupFlows:
    """The flows of a group: its limiters, which share one store, and the callers that wait for all of them.

    ``names`` are the names of the limits in costs. ``has_one_key`` is true if every limit has the same key.
    """

    def __init__(self, limiters: Sequence[BaseLimiter], names: Sequence[str], *, has_one_key: bool) -> None:
        self.limiters = tuple(limiters)
        self.names = tuple(names)
        self.has_one_key = has_one_key
        self.store = limiters[0].store
        self.wait_queue = WaitQueue()
        self.settlements = Settlements(self.store, limiters[0].name)

    def acquire_flow(
        self, keys: Keys, cost: Cost, timeout: float | None, caller: Caller | None = None
    ) -> Flow[bool]:
        """Take a cost from every limit or from none, waiting up to ``timeout`` seconds."""
        caller = resolve_caller(None, None) if caller is None else caller
        texts, amounts = self._normalize_keys(keys), self.amounts(cost)
        check_timeout(timeout)
        yield from self._check_cost_flow(texts, amounts)
        waits_us: list[int] = []
        queue_key, clock = "\0".join(texts), self.store.clock
        if timeout == 0:
            if not self.wait_queue.is_empty(queue_key, caller.rank):
                return False  # callers that already wait go first
            return (yield from self._try_acquire_flow(texts, amounts, caller.rank, None, waits_us)) == 0
        deadline_us = NEVER_US if timeout is None else clock.now_ns() // 1000 + to_us(timeout)
        return (
            yield from wait_flow(
                self.wait_queue,
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

    def decide_flow(self, keys: Keys, cost: Cost, caller: Caller | None = None) -> Flow[Decision]:
        """Take a cost from every limit or from none; return the decision of the most restrictive limit."""
        rank = (resolve_caller(None, None) if caller is None else caller).rank
        texts, amounts = self._normalize_keys(keys), self.amounts(cost)
        yield from self._check_cost_flow(texts, amounts)
        operation = yield from self.passing_operation_flow(texts, amounts, rank)
        replies: list[LimitReply] = yield Apply(self.store, operation)
        would_refuse = self.count_would_refuse(operation, replies)
        known = list(zip(operation.demands, replies, strict=True))
        in_force = [reply for demand, reply in known if not demand.shadow] or replies
        most_restrictive = max(in_force, key=lambda reply: (reply.wait_us, -reply.remaining))
        allowed = operation.binding_wait_us([reply.wait_us for reply in replies]) == 0
        decision = decision_from_reply(most_restrictive, allowed=allowed)
        return decision._replace(retry_after=0.0, would_refuse=True) if would_refuse else decision

    def count_would_refuse(self, operation: LimitOperation, replies: Sequence[LimitReply]) -> bool:
        """Count a grant that limits in shadow mode would have refused; return whether any would."""
        if operation.binding_wait_us([reply.wait_us for reply in replies]):
            return False
        would_refuse = False
        for limiter, demand, reply in zip(self.limiters, operation.demands, replies, strict=True):
            shadow = limiter._flows.flows_of(demand.key).shadow
            if shadow is not None and reply.wait_us:
                shadow.count_would_refuse()
                would_refuse = True
        return would_refuse

    def release_flow(self, keys: Keys, cost: Cost) -> Flow[None]:
        """Give a cost back to every limit."""
        texts, amounts = self._normalize_keys(keys), self.amounts(cost)
        operation = yield from self._operation_flow(texts, [-amount for amount in amounts])
        yield Apply(self.store, operation)
        self.wait_queue.wake_first("\0".join(texts))

    def settle_flow(self, keys: Keys, reserved: Cost, used: Cost, granted_at: float | None) -> Flow[bool]:
        """Credit or debit each limit with the difference in cost; true if that changed any of them."""
        texts = self._normalize_keys(keys)
        taken = cost_amounts("reserved", reserved, self.names, self._ones)
        spent = cost_amounts("used", used, self.names, taken)
        settlements = yield from self._settlements_flow(texts, taken, spent, granted_at)
        replies = yield from settle_all_flow(self.store, settlements)
        for reply in replies:
            if isinstance(reply, StateError):
                raise reply
        return any(replies)

    def reserve_flow(self, keys: Keys, cost: Cost, timeout: float | None) -> Flow[Reservation]:
        """Take an estimate from every limit; raise an error if it is not granted in time."""
        if not (yield from self.acquire_flow(keys, cost, timeout)):
            decision = yield from self.decide_flow(keys, cost)
            if not decision.allowed:
                raise self._refusal_error(decision, cost)
        return Reservation(cost, self.store.clock.now_ns() / 1e9, self.names, self.amounts(cost))

    def _refusal_error(self, decision: Decision, cost: Cost) -> LimitReachedError:
        name = self.limiters[0].name
        text = f"{name}: the limits {', '.join(self.names)} had no capacity for {cost} in time"
        return LimitReachedError(text, name, decision.retry_after)

    def settle_reservation_flow(self, keys: Keys, reservation: Reservation) -> Flow[None]:
        """Settle what a reservation has used, together with others if that saves a round trip."""
        texts, taken = self._normalize_keys(keys), reservation.reserved_amounts
        settlements = yield from self._settlements_flow(
            texts, taken, reservation.used_amounts, reservation.granted_at
        )
        if settlements:
            yield from self.settlements.send_soon_flow(settlements)

    def _settlements_flow(
        self, texts: Sequence[str], taken: Sequence[int], spent: Sequence[int], granted_at: float | None
    ) -> Flow[list[Settlement]]:
        settlements = []
        wake = partial(self.wait_queue.wake_first, "\0".join(texts))
        for limiter, text, reserved, used in zip(self.limiters, texts, taken, spent, strict=True):
            settlement = yield from limiter._budget.settlement_flow(text, reserved, used, granted_at)
            if settlement is not None:
                settlements.append(Settlement(settlement.operation, wake))
        return settlements

    def _check_cost_flow(self, texts: Sequence[str], amounts: Sequence[int]) -> Flow[None]:
        """Raise an error for a cost that one of the limits can never grant."""
        for limiter, text, amount in zip(self.limiters, texts, amounts, strict=True):
            yield from limiter._flows.check_cost_flow(text, amount)

    def passing_operation_flow(
        self, texts: Sequence[str], amounts: Sequence[int], rank: int
    ) -> Flow[LimitOperation]:
        """Return the operation of a caller that does not wait."""
        return (yield from self._operation_flow(texts, amounts, rank, self._attempt(texts, rank, None)))

    def _attempt(self, texts: Sequence[str], rank: int, deadline_us: int | None) -> ClaimAttempt | None:
        """Return the place of a caller among the waiters of all processes.

        Without a deadline it does not wait.
        """
        if not self.store.shared:
            return None
        if deadline_us is None:
            return ClaimAttempt(0, rank)
        now_us = self.store.clock.now_ns() // 1000
        return self.wait_queue.claim_attempt("\0".join(texts), rank, now_us, deadline_us)

    def _try_acquire_flow(
        self,
        texts: Sequence[str],
        amounts: Sequence[int],
        rank: int,
        deadline_us: int | None,
        waits_us: list[int],
    ) -> Flow[int]:
        """Take from every limit or from none; store the wait of each limit in ``waits_us``."""
        attempt = self._attempt(texts, rank, deadline_us)
        operation = yield from self._operation_flow(texts, amounts, rank, attempt)
        replies: list[LimitReply] = yield Apply(self.store, operation)
        self.count_would_refuse(operation, replies)
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
            for limiter, text, amount, wait_us in zip(self.limiters, texts, amounts, waits_us, strict=True)
        ]

        def pace(units: GroupUnits) -> int:
            by_limit = zip(paces, units.amounts, strict=True)
            return max(each(amount) for each, amount in by_limit if each is not None)

        return pace

    def _pause_jitter_us(self) -> int:
        return max(limiter._flows.overrides.pause_jitter_us() for limiter in self.limiters)

    def _operation_flow(
        self,
        texts: Sequence[str],
        amounts: Sequence[int],
        rank: int | None = None,
        attempt: ClaimAttempt | None = None,
    ) -> Flow[LimitOperation]:
        """Return one operation on all limits; a limit that costs nothing must not be paused either."""
        demands = []
        for limiter, text, amount in zip(self.limiters, texts, amounts, strict=True):
            demands.append((yield from limiter._flows.demand_flow(text, amount, rank, attempt)))
        return LimitOperation(demands)

    @property
    def _ones(self) -> list[int]:
        return [1] * len(self.names)

    def amounts(self, cost: Cost) -> list[int]:
        """Return the cost for each limit, in order."""
        amounts = cost_amounts("cost", cost, self.names, self._ones)
        if not any(amounts):
            raise ValueError(f"cost must be at least 1 for one of the limits, got {cost!r:.100}")
        return amounts

    def _normalize_keys(self, keys: Keys) -> list[str]:
        if self.has_one_key and (keys is None or isinstance(keys, str | LimitKey)):
            return [normalize_key(keys)] * len(self.limiters)
        if keys is None or isinstance(keys, str | LimitKey) or len(keys) != len(self.limiters):
            raise ValueError(
                f"keys must be a list, one for each of {len(self.limiters)} limiters, got {keys!r:.100}"
            )
        return [normalize_key(key) for key in keys]
