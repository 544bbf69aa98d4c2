"""Every method of a limiter, implemented once as a flow.

``limiter.py`` drives these flows for coroutines and ``sync_limiter.py`` for threads. Neither has logic of its
own, except the fast path of a single decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from comporta.clock import to_seconds, to_us
from comporta.flow import Flow
from comporta.limits.acquire_up_to import AcquireUpTo
from comporta.limits.arguments import check_cost, check_timeout
from comporta.limits.bound_limits import AcquireEffect, strategy_effect
from comporta.limits.claim_operation import ClaimOperation
from comporta.limits.claims import BLOCKED_US_MIN, CLAIM_TTL_US, RETRY_EVERY_US, ClaimAttempt
from comporta.limits.config import CAPACITY_MAX, LimitConfig, class_headrooms
from comporta.limits.decision import Decision, Stats, decision_from_reply
from comporta.limits.key import LimitKey, normalize_key
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.overrides.flows import OverrideFlows
from comporta.limits.peek import PeekOperation
from comporta.limits.priority import NO_HEADROOM, NORMAL, Caller, resolve_caller
from comporta.limits.reply import LimitReply
from comporta.limits.scripts import LIMIT_SPACE, claim_script
from comporta.limits.strategies.registry import strategy_type
from comporta.limits.wait_order import Pace
from comporta.limits.wait_queue import TIMEOUT_MAX, WaitQueue, wait_flow
from comporta.stores.base import Store
from comporta.stores.bound_limit import Algorithm, BoundLimit
from comporta.stores.effects import Apply, Sleep
from comporta.stores.records import NEVER_US, DeleteRecord
from comporta.validators import require_integer

if TYPE_CHECKING:
    from comporta.limits.bound_limits import RemoteBoundLimit
    from comporta.limits.leases.client import LeaseClient
    from comporta.limits.shadow import ShadowBoundLimit
    from comporta.limits.strategies.base import LimitParams, Strategy

Key = LimitKey | str | None

_UNCHECKED_TURN_US = 50_000
"""A turn that is closer than this is used without checking whether the limit was paused meanwhile."""


class LimitFlows:
    """The flows of one limit on one store."""

    __slots__ = (
        "_claim_script",
        "_closed_after_us",
        "_first_strategy",
        "_has_queue",
        "_headrooms",
        "_remote",
        "_remote_strategy",
        "bound",
        "config",
        "contended_until_us",
        "current_strategy",
        "lease_client",
        "name",
        "overrides",
        "params",
        "read_strategy",
        "shadow",
        "store",
        "wait_queue",
    )

    def __init__(
        self,
        config: LimitConfig,
        store: Store,
        name: str,
        bound: BoundLimit,
        *,
        current_strategy: Callable[[], Strategy],
        lease_client: LeaseClient | None = None,
    ) -> None:
        self.config = config
        self.store = store
        self.name = name
        self.bound = bound
        self.current_strategy = current_strategy
        self.lease_client = lease_client
        self.wait_queue = WaitQueue()
        self.params: LimitParams = config.build_strategy().params
        self.read_strategy = strategy_effect(bound)
        self._has_queue = strategy_type(config.strategy_name).has_queue
        self._headrooms = class_headrooms(config)
        self.contended_until_us = 0
        self._claim_script = claim_script(config.strategy_name, name, tuple(self.params))
        self._remote: RemoteBoundLimit | None = bound.remote
        self.shadow: ShadowBoundLimit | None = bound.shadow
        self.overrides = OverrideFlows(self)
        self._closed_after_us = to_us(config.closed_after)
        self._remote_strategy: Strategy | None = None if self._remote is None else self._remote.algorithm
        has_plain_decisions = not (self._has_queue or self.shadow or lease_client)
        self._first_strategy = self._remote_strategy if has_plain_decisions else None

    def acquire_flow(
        self, key: Key, cost: int, timeout: float | None, caller: Caller | None = None
    ) -> Flow[bool]:
        """Take ``cost``, waiting up to ``timeout`` seconds; by default the context gives the caller."""
        text = normalize_key(key)
        check_cost(cost)
        check_timeout(timeout)
        yield from self.check_cost_flow(text, cost)
        if self.shadow is not None:
            return (yield from self._acquire_flow(key, cost)) == 0  # no caller waits in shadow mode
        caller = resolve_caller(None, None) if caller is None else caller
        has_headroom = self.has_headroom(caller.rank)
        if timeout == 0:
            if not self.wait_queue.is_empty(text, caller.rank):
                return False  # callers that already wait go first
            if has_headroom or (caller.rank != NORMAL and self._has_claims(cost)):
                attempt = self._passing_attempt(caller.rank)
                return (yield from self._claim_flow(text, cost, caller.rank, attempt)) == 0
            return (yield from self._acquire_flow(key, cost)) == 0
        if self._has_queue and not has_headroom:
            return (yield from self._queue_turn_flow(text, cost, timeout))
        try_acquire: Callable[[], Flow[int]] = partial(self._acquire_flow, key, cost)
        if has_headroom or self._has_claims(cost):
            has_lease = self.lease_client is not None and not has_headroom
            is_first = has_lease and self.wait_queue.is_empty(text, caller.rank)
            if is_first and not (yield from self._acquire_flow(key, cost)):
                return True
            deadline_us = self._deadline_us(timeout)
            try_acquire = partial(self._wait_in_order_flow, text, cost, caller.rank, deadline_us)
        return (
            yield from wait_flow(
                self.wait_queue,
                try_acquire,
                self.store.clock,
                text,
                timeout,
                jitter_us=self.overrides.pause_jitter_us,
                cost=cost,
                pace_after=partial(self.pace_after, cost),
                caller=caller,
            )
        )

    def acquire_first_flow(self, key: Key, timeout: float, caller: Caller) -> Flow[bool]:
        """Take one unit from a server before the caller joins the wait queue; false if it must wait.

        An ordinary call then needs neither a waiter nor its locks. A refused caller leaves a claim, and the
        next ones join the queue first (``is_contended``).
        """
        queue = self.wait_queue
        if self._first_strategy is None or queue.waiters_by_key or self.is_contended:
            return False
        attempt = ClaimAttempt(queue.claimant, caller.rank, 0, to_us(timeout))
        demand = self._demand(self._first_strategy, normalize_key(key), 1, caller.rank, attempt)
        return (yield from self._apply_claim_flow(demand, attempt)) == 0

    def decide_flow(self, key: Key, cost: int, caller: Caller | None = None) -> Flow[Decision]:
        """Take ``cost`` if it is available, and return the decision."""
        text = normalize_key(key)
        check_cost(cost)
        yield from self.check_cost_flow(text, cost)
        caller = resolve_caller(None, None) if caller is None else caller
        if self.shadow is None and not self.wait_queue.is_empty(text, caller.rank):
            return (yield from self._decide_behind_waiters_flow(key, cost, caller))
        demand = yield from self._passing_demand_flow(text, cost, caller)
        [reply] = yield Apply(self.store, LimitOperation([demand]))
        return self._decision(reply, counts=True)

    def _decide_behind_waiters_flow(self, key: Key, cost: int, caller: Caller) -> Flow[Decision]:
        """Refuse until the waiting callers of this process can have been served."""
        decision = yield from self.peek_flow(key, cost, caller)
        earliest_us = self.wait_queue.earliest_us(normalize_key(key), cost, caller)
        wait_us = max(BLOCKED_US_MIN, earliest_us - self.store.clock.now_ns() // 1000)
        retry_after = max(decision.retry_after, to_seconds(wait_us))
        return decision._replace(allowed=False, retry_after=retry_after)

    def acquire_up_to_flow(self, key: Key, cost: int, caller: Caller | None = None) -> Flow[int]:
        """Take as much of ``cost`` as is available, and return that amount."""
        text = normalize_key(key)
        require_integer("cost", cost, 1, CAPACITY_MAX)
        caller = resolve_caller(None, None) if caller is None else caller
        if not self.wait_queue.is_empty(text, caller.rank):
            return 0  # callers that already wait go first
        demand = yield from self._passing_demand_flow(text, cost, caller)
        granted: int = yield Apply(self.store, AcquireUpTo(demand))
        if self.shadow is not None and granted < cost:
            self.shadow.count_would_refuse()
            return cost
        return granted

    def peek_flow(self, key: Key, cost: int = 1, caller: Caller | None = None) -> Flow[Decision]:
        """Return what ``decide_flow`` would decide, and take nothing."""
        text = normalize_key(key)
        check_cost(cost)
        yield from self.check_cost_flow(text, cost)
        demand = yield from self._passing_demand_flow(text, cost, caller)
        reply: LimitReply = yield Apply(self.store, PeekOperation(demand))
        return self._decision(reply, counts=False)

    def _decision(self, reply: LimitReply, *, counts: bool) -> Decision:
        """Return the decision for a reply; in shadow mode a refusal is counted and granted."""
        allowed = reply.wait_us == 0
        if allowed or self.shadow is None:
            return decision_from_reply(reply, allowed=allowed)
        if counts:
            self.shadow.count_would_refuse()
        return decision_from_reply(reply, allowed=True)._replace(retry_after=0.0, would_refuse=True)

    def release_flow(self, key: Key, cost: int) -> Flow[None]:
        """Give ``cost`` back."""
        text = normalize_key(key)
        check_cost(cost)
        yield from self._apply_flow(text, -cost)
        if self.lease_client is not None:
            self.lease_client.forget_refusal(text)
        self.wait_queue.wake_first(text)

    def reset_flow(self, key: Key) -> Flow[None]:
        """Delete the state of a key."""
        text = normalize_key(key)
        strategy: Algorithm = yield self.read_strategy
        yield Apply(self.store, DeleteRecord(f"{LIMIT_SPACE}:{self.name}", text, state_type=strategy))
        if self.lease_client is not None:
            self.lease_client.drop_key(text)
        self.wait_queue.wake_first(text)

    def stats_flow(self, key: Key) -> Flow[Stats]:
        """Return the numbers for a health page."""
        reply = yield from self._apply_flow(normalize_key(key), 0)
        return Stats(
            tokens_available=reply.remaining,
            requests_last_minute=reply.recent,
            limit=reply.capacity,
            fallback=self.store.fallback,
            paused=to_seconds(reply.paused_us),
            original=reply.original,
        )

    @property
    def is_remote(self) -> bool:
        """Whether a server decides, by a clock that is not the clock of this process."""
        return self._remote is not None

    def pace_after(self, cost: int, now_us: int, wait_us: int) -> Pace:
        """Return when the limit grants some units, the first ``cost`` of them after ``wait_us``."""
        from_us = now_us + wait_us - self._pace_us(max(1, cost))
        return lambda units: from_us + self._pace_us(units)

    def _pace_us(self, units: int) -> int:
        """Return how long the limit takes to grant some units, as far as this process knows."""
        return self.current_strategy().effective_at(self.store.clock.now_ns() // 1000)[0].pace_us(units)

    def flows_of(self, text: str) -> LimitFlows:
        """Return the flows of a key's limit: these, unless keys have limits of their own."""
        return self

    def has_headroom(self, rank: int) -> bool:
        """Whether callers of this class leave headroom to higher classes."""
        return self._headrooms[rank].units > 0

    def fast_path_checks(self) -> tuple[Collection[str], Callable[[Key], bool]]:
        """Return a fast path's checks: a call needs a flow if the first is not empty and the second true.

        The second is called with the key. A flow is needed if callers wait for the key, or if every caller
        leaves headroom.
        """
        if self.has_headroom(NORMAL):
            return ("",), lambda key: True
        return self.wait_queue.waiters_by_key, self.wait_queue.may_have

    def demand_flow(
        self, text: str, amount: int, rank: int | None = None, attempt: ClaimAttempt | None = None
    ) -> Flow[LimitDemand]:
        """Return the demand of an operation on this limit; without a class it may take everything."""
        strategy = self._remote_strategy
        if strategy is None:
            strategy = yield self.read_strategy
        return self._demand(strategy, text, amount, rank, attempt)

    def _demand(
        self,
        strategy: Strategy,
        text: str,
        amount: int,
        rank: int | None,
        attempt: ClaimAttempt | None = None,
    ) -> LimitDemand:
        headroom = NO_HEADROOM if rank is None else self._headrooms[rank]
        fallback, current = self.config.fallback, self.current_strategy
        given = (strategy, self.name, text, amount, fallback, current, headroom, self._closed_after_us)
        return LimitDemand(*given, attempt, self.shadow is not None)

    def _passing_demand_flow(self, text: str, cost: int, caller: Caller | None) -> Flow[LimitDemand]:
        """Return the demand of a caller that does not wait."""
        rank = (resolve_caller(None, None) if caller is None else caller).rank
        return (yield from self.demand_flow(text, cost, rank, self._passing_attempt(rank)))

    def _passing_attempt(self, rank: int) -> ClaimAttempt | None:
        """Return the attempt of a caller that does not wait; ``None`` where no other process can wait."""
        return ClaimAttempt(0, rank) if self.store.shared else None

    def _has_claims(self, cost: int) -> bool:
        """Whether waiters leave claims; with a lease, only waiters that need several units at once do."""
        return self.store.shared and (self.lease_client is None or cost > 1)

    def _wait_in_order_flow(self, text: str, cost: int, rank: int, deadline_us: int) -> Flow[int]:
        """Take ``cost`` above the headroom of a class; a caller that is refused leaves a claim."""
        attempt = None
        if self.store.shared:
            now_us = self.store.clock.now_ns() // 1000
            attempt = self.wait_queue.claim_attempt(text, rank, now_us, deadline_us)
        return (yield from self._claim_flow(text, cost, rank, attempt))

    def _claim_flow(self, text: str, cost: int, rank: int, attempt: ClaimAttempt | None) -> Flow[int]:
        demand = yield from self.demand_flow(text, cost, rank, attempt)
        return (yield from self._apply_claim_flow(demand, attempt))

    def _apply_claim_flow(self, demand: LimitDemand, attempt: ClaimAttempt | None) -> Flow[int]:
        wait_us: int = yield Apply(self.store, ClaimOperation(self._claim_script, demand, attempt))
        if wait_us:
            self.contended_until_us = self.store.clock.now_ns() // 1000 + RETRY_EVERY_US + CLAIM_TTL_US
        return wait_us

    @property
    def is_contended(self) -> bool:
        """Whether a waiter of this process was recently refused because of claims, or left one.

        While it is false, a waiting caller may first try without a claim, which is much faster if this
        process decides. ``contended_until_us`` is 0 if that never happened, so that fast paths can check it
        without a call.
        """
        until_us = self.contended_until_us
        return until_us > 0 and self.store.clock.now_ns() // 1000 < until_us

    def _deadline_us(self, timeout: float | None) -> int:
        return NEVER_US if timeout is None else self.store.clock.now_ns() // 1000 + to_us(timeout)

    def _acquire_flow(self, key: Key, cost: int) -> Flow[int]:
        wait_us: int = yield AcquireEffect(self.bound, key, cost)
        return wait_us

    def _apply_flow(self, text: str, amount: int, max_wait_us: int = 0) -> Flow[LimitReply]:
        demand = yield from self.demand_flow(text, amount)
        replies: list[LimitReply] = yield Apply(self.store, LimitOperation([demand], max_wait_us))
        return replies[0]

    def _queue_turn_flow(self, text: str, cost: int, timeout: float | None) -> Flow[bool]:
        """Take the next turn of a queue and wait for it; an assigned turn is spent whether used or not.

        If the limit is paused meanwhile, all assigned turns would fall at the end of the pause, so the flow
        takes a new turn.
        """
        clock, deadline_us = self.store.clock, self._deadline_us(timeout)
        while True:
            max_wait_us = max(0, min(deadline_us - clock.now_ns() // 1000, to_us(TIMEOUT_MAX)))
            reply = yield from self._apply_flow(text, cost, max_wait_us)
            wait_us = reply.paused_us or reply.wait_us
            if wait_us > max_wait_us:
                return False
            if reply.paused_us:
                yield from self._wait_out_pause_flow(reply.paused_us, max_wait_us)
                continue
            if wait_us:
                yield Sleep(clock, to_seconds(wait_us))
            if wait_us < _UNCHECKED_TURN_US or not (yield from self._apply_flow(text, 0)).paused_us:
                return True

    def _wait_out_pause_flow(self, paused_us: int, max_wait_us: int) -> Flow[None]:
        wait_us = RETRY_EVERY_US
        if paused_us <= RETRY_EVERY_US:
            wait_us = min(paused_us + self.overrides.pause_jitter_us(), max_wait_us)
        yield Sleep(self.store.clock, to_seconds(wait_us))

    def check_cost_flow(self, text: str, cost: int) -> Flow[None]:
        """Raise an error for a cost that the limit, with any override, can never grant."""
        if cost > self.config.capacity:
            reply = yield from self._apply_flow(text, 0)
            capacity = max(reply.capacity, reply.original)
            if (
                cost > capacity and self.store.fallback is None
            ):  # the capacity of a local share does not count
                raise ValueError(f"cost must be at most the capacity, {capacity}, got {cost}")
