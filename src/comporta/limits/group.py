"""Several limits in one decision: all of them are charged in one step, or none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from comporta.flow import Flow, run, run_async
from comporta.limits.decision import Decision, decision_from_reply
from comporta.limits.flows import Key, check_cost, check_timeout
from comporta.limits.key import normalize_key
from comporta.limits.limiter import BaseLimiter
from comporta.limits.operation import LimitOperation
from comporta.limits.reply import LimitReply
from comporta.limits.wait_queue import WaitQueue, wait_flow
from comporta.stores.effects import Apply

LIMITS_MAX = 16


class LimitGroup:
    """Limits on one store that apply together, such as a total and a limit for each user.

    ::

        both = LimitGroup(total, each_user)
        await both.acquire([None, "user:42"], timeout=1)

    ``sync`` has the same methods for blocking code.
    """

    def __init__(self, *limiters: BaseLimiter) -> None:
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
        self.sync = SyncLimitGroup(self)

    async def acquire(self, keys: Sequence[Key], cost: int = 1, timeout: float | None = 0) -> bool:
        """Take ``cost`` from every limit or from none; ``keys`` are in the order of the limiters."""
        return await run_async(self._acquire_flow(keys, cost, timeout))

    async def decide(self, keys: Sequence[Key], cost: int = 1) -> Decision:
        """Take ``cost`` from every limit or from none; return the decision of the most restrictive limit."""
        return await run_async(self._decide_flow(keys, cost))

    async def release(self, keys: Sequence[Key], cost: int = 1) -> None:
        """Give ``cost`` back to every limit."""
        await run_async(self._release_flow(keys, cost))

    def _acquire_flow(self, keys: Sequence[Key], cost: int, timeout: float | None) -> Flow[bool]:
        texts = self._normalize_keys(keys, cost)
        check_timeout(timeout)
        yield from self._check_cost_flow(texts, cost)
        try_acquire = partial(self._try_acquire_flow, texts, cost)
        if timeout == 0:
            return (yield from try_acquire()) == 0
        return (
            yield from wait_flow(
                self._wait_queue,
                try_acquire,
                self._store.clock,
                "\0".join(texts),
                timeout,
                jitter_us=self._pause_jitter_us,
            )
        )

    def _decide_flow(self, keys: Sequence[Key], cost: int) -> Flow[Decision]:
        texts = self._normalize_keys(keys, cost)
        yield from self._check_cost_flow(texts, cost)
        operation = yield from self._operation_flow(texts, cost)
        replies: list[LimitReply] = yield Apply(self._store, operation)
        allowed = all(reply.wait_us == 0 for reply in replies)
        most_restrictive = max(replies, key=lambda reply: (reply.wait_us, -reply.remaining))
        return decision_from_reply(most_restrictive, allowed=allowed)

    def _release_flow(self, keys: Sequence[Key], cost: int) -> Flow[None]:
        texts = self._normalize_keys(keys, cost)
        operation = yield from self._operation_flow(texts, -cost)
        yield Apply(self._store, operation)
        self._wait_queue.wake_first("\0".join(texts))

    def _check_cost_flow(self, texts: Sequence[str], cost: int) -> Flow[None]:
        """Raise for a cost that one of the limits could never grant."""
        for limiter, text in zip(self._limiters, texts, strict=True):
            yield from limiter._flows.check_cost_flow(text, cost)

    def _try_acquire_flow(self, texts: Sequence[str], cost: int) -> Flow[int]:
        operation = yield from self._operation_flow(texts, cost)
        replies: list[LimitReply] = yield Apply(self._store, operation)
        return max(reply.wait_us for reply in replies)

    def _pause_jitter_us(self) -> int:
        return max(limiter._flows.pause_jitter_us() for limiter in self._limiters)

    def _operation_flow(self, texts: Sequence[str], amount: int) -> Flow[LimitOperation]:
        """Return one operation on all limits."""
        demands = []
        for limiter, text in zip(self._limiters, texts, strict=True):
            demands.append((yield from limiter._flows.demand_flow(text, amount)))
        return LimitOperation(demands)

    def _normalize_keys(self, keys: Sequence[Key], cost: int) -> list[str]:
        if isinstance(keys, str) or len(keys) != len(self._limiters):
            raise ValueError(
                f"keys must be a list, one for each of {len(self._limiters)} limiters, got {keys!r:.100}"
            )
        check_cost(cost)
        return [normalize_key(key) for key in keys]


class SyncLimitGroup:
    """The methods of a group, blocking: ``group.sync``."""

    __slots__ = ("_group",)

    def __init__(self, group: LimitGroup) -> None:
        self._group = group

    def acquire(self, keys: Sequence[Key], cost: int = 1, timeout: float | None = 0) -> bool:
        """Take ``cost`` from every limit or from none."""
        return run(self._group._acquire_flow(keys, cost, timeout))

    def decide(self, keys: Sequence[Key], cost: int = 1) -> Decision:
        """Take ``cost`` from every limit or from none; return the decision of the most restrictive limit."""
        return run(self._group._decide_flow(keys, cost))

    def release(self, keys: Sequence[Key], cost: int = 1) -> None:
        """Give ``cost`` back to every limit."""
        run(self._group._release_flow(keys, cost))
