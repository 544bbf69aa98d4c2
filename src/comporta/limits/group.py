"""Several limits at once: all of them, or none is charged, in one step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from comporta.flow import Flow, run, run_async
from comporta.limits.decision import Decision
from comporta.limits.key import state_key
from comporta.limits.limiter import BaseLimiter
from comporta.limits.operation import Answer, LimitOperation
from comporta.limits.verbs import Key, check_cost, check_timeout
from comporta.limits.waiting import Lines, in_line
from comporta.stores.effects import Apply

LIMITS_MAX = 16


class LimitGroup:
    """Limits on one state that are obeyed together: a global one and one per user, say.

    ::

        both = LimitGroup(everybody, each_user)
        await both.acquire([None, "user:42"], timeout=1)
    """

    def __init__(self, *limiters: BaseLimiter) -> None:
        if not 1 <= len(limiters) <= LIMITS_MAX:
            raise ValueError(f"limiters must be 1 to {LIMITS_MAX}, got {len(limiters)}")
        if any(limiter.store is not limiters[0].store for limiter in limiters):
            raise ValueError("limiters must share one state, got several: give all the same state URL")
        if len({limiter.name for limiter in limiters}) < len(limiters):
            names = ", ".join(limiter.name for limiter in limiters)
            raise ValueError(f"limiters must have names of their own, got {names}")
        self._limiters = limiters
        self._store = limiters[0].store
        self._lines = Lines()
        self.sync = SyncGroup(self)

    async def acquire(self, keys: Sequence[Key], cost: int = 1, timeout: float | None = 0) -> bool:
        """Take ``cost`` from every limit, or from none; ``keys`` are in the order of the limiters."""
        return await run_async(self.acquiring(keys, cost, timeout))

    async def decide(self, keys: Sequence[Key], cost: int = 1) -> Decision:
        """Take ``cost`` from every limit, or from none, and tell of the one that binds."""
        return await run_async(self.deciding(keys, cost))

    async def release(self, keys: Sequence[Key], cost: int = 1) -> None:
        """Give back to every limit."""
        await run_async(self.releasing(keys, cost))

    def acquiring(self, keys: Sequence[Key], cost: int, timeout: float | None) -> Flow[bool]:
        """The flow of ``acquire``."""
        texts = self._texts(keys, cost)
        check_timeout(timeout)
        yield from self._fits(texts, cost)
        ask = partial(self._asking, texts, cost)
        if timeout == 0:
            return (yield from ask()) == 0
        line = "\0".join(texts)
        return (
            yield from in_line(self._lines, ask, self._store.clock, line, timeout, spread=self._spread_us)
        )

    def deciding(self, keys: Sequence[Key], cost: int) -> Flow[Decision]:
        """The flow of ``decide``."""
        texts = self._texts(keys, cost)
        yield from self._fits(texts, cost)
        operation = yield from self.operation(texts, cost)
        answers: list[Answer] = yield Apply(self._store, operation)
        allowed = all(answer.wait_us == 0 for answer in answers)
        binding = max(answers, key=lambda answer: (answer.wait_us, -answer.remaining))
        return Decision.of(binding, allowed=allowed)

    def releasing(self, keys: Sequence[Key], cost: int) -> Flow[None]:
        """The flow of ``release``."""
        texts = self._texts(keys, cost)
        operation = yield from self.operation(texts, -cost)
        yield Apply(self._store, operation)
        self._lines.call_first("\0".join(texts))

    def _fits(self, texts: Sequence[str], cost: int) -> Flow[None]:
        """Refuse a cost that one of the limits in force could never grant."""
        for limiter, text in zip(self._limiters, texts, strict=True):
            yield from limiter.verbs.fits(text, cost)

    def _asking(self, texts: Sequence[str], cost: int) -> Flow[int]:
        operation = yield from self.operation(texts, cost)
        answers: list[Answer] = yield Apply(self._store, operation)
        return max(answer.wait_us for answer in answers)

    def _spread_us(self) -> int:
        return max(limiter.verbs.spread_us() for limiter in self._limiters)

    def operation(self, texts: Sequence[str], amount: int) -> Flow[LimitOperation]:
        """Return one operation that asks all limits."""
        questions = []
        for limiter, text in zip(self._limiters, texts, strict=True):
            questions.append((yield from limiter.verbs.question(text, amount)))
        return LimitOperation(questions)

    def _texts(self, keys: Sequence[Key], cost: int) -> list[str]:
        if isinstance(keys, str) or len(keys) != len(self._limiters):
            raise ValueError(
                f"keys must be a list, one for each of {len(self._limiters)} limiters, got {keys!r:.100}"
            )
        check_cost(cost)
        return [state_key(key) for key in keys]


class SyncGroup:
    """The verbs of a group, blocking: ``group.sync``."""

    __slots__ = ("_group",)

    def __init__(self, group: LimitGroup) -> None:
        self._group = group

    def acquire(self, keys: Sequence[Key], cost: int = 1, timeout: float | None = 0) -> bool:
        """Take ``cost`` from every limit, or from none."""
        return run(self._group.acquiring(keys, cost, timeout))

    def decide(self, keys: Sequence[Key], cost: int = 1) -> Decision:
        """Take ``cost`` from every limit, or from none, and tell of the one that binds."""
        return run(self._group.deciding(keys, cost))

    def release(self, keys: Sequence[Key], cost: int = 1) -> None:
        """Give back to every limit."""
        run(self._group.releasing(keys, cost))
