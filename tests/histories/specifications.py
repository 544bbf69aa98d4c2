"""The pure steps of limits and permits, as specifications of what calls do one after the other.

A recorded history must be explained by the very functions that the stores apply: what this verifies is that a
store, in whichever process and language, applies them atomically and in the order of its clock.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

from tests.histories.linearizability import Call, intervals

from comporta import LimitConfig, LimitStrategy
from comporta.limits.concurrency.operation import AcquirePermit, PermitOperation, ReleasePermits, RenewPermit
from comporta.limits.concurrency.permits import Permit, PermitPool
from comporta.stores.base import GONE

LimitRequest = tuple[str, int]
"""``decide``, ``acquire``, ``release`` or ``settle``, and an amount."""


class _Effect(NamedTuple):
    """What a call does at a moment: its reply, and what later replies depend on."""

    at_us: int
    reply: Any
    essence: Hashable

    def is_like(self, other: _Effect) -> bool:
        return bool(self.reply == other.reply and self.essence == other.essence)

    def is_decision_like(self, other: _Effect) -> bool:
        """Return whether both decide the same, with times that are equal or end at the same moment."""
        one, two, later_us = self.reply, other.reply, other.at_us - self.at_us
        return one[:2] == two[:2] and all(one[n] - two[n] in (0, later_us) for n in (2, 3))


class LimitSpecification:
    """One key of a limit. Its decisions name exact times, so that each leaves few moments possible."""

    initial: Any = None

    def __init__(self, config: LimitConfig) -> None:
        self._strategy = config.build_strategy()
        self._kind = config.strategy

    def apply(self, state: Any, now_us: int, request: LimitRequest) -> tuple[Any, Any]:
        method, amount = request
        strategy = self._strategy
        if state is not None and strategy.expires_us(state) <= now_us:
            state = None
        if method == "release":
            return (state if state is None else strategy.release(state, now_us, amount)), None
        if method == "settle":
            new = None
            if amount > 0 or not strategy.params.is_window_over(0):
                new = strategy.settle(state, now_us, amount, 0)
            return (state if new is None else new), new is not None
        new, wait_us = strategy.step(state, now_us, amount)
        state = state if new is None else new
        if method == "acquire":
            return state, wait_us == 0
        remaining, reset_us = strategy.available(state, now_us)
        return state, [wait_us == 0, remaining, wait_us, reset_us]

    def moments_of(self, state: Any, call: Call, moments: Sequence[int]) -> Iterator[int]:
        """Return the first moment of each interval in which a call does the same and may reply as it did.

        The times in a decision count down towards one moment, which tells when it was made, or are the same
        for all moments of an interval, of which each is worth trying then.
        """

        def look(at_us: int) -> _Effect:
            new, reply = self.apply(state, at_us, call.request)
            return _Effect(at_us, reply, self.essence(new, at_us) if reply == call.reply else None)

        if not isinstance(moments, range):
            yield from moments  # the few at which the store read its clock
            return
        if call.request[0] != "decide":
            for start, _ in intervals(moments, look, _Effect.is_like):
                yield start.at_us
            return
        for start, end in intervals(moments, look, _Effect.is_decision_like):
            if start.reply[:2] != call.reply[:2]:
                continue
            if start.reply[3] == end.reply[3]:
                yield from range(start.at_us, end.at_us + 1, moments.step)
            else:
                yield min(max(start.at_us, start.at_us + start.reply[3] - call.reply[3]), end.at_us)

    def essence(self, state: Any, now_us: int) -> Hashable:
        """Return the count and the start of a window, the log of a sliding one, or the line of a level."""
        if state is None:
            return None
        if self._kind is LimitStrategy.FIXED_WINDOW:
            return tuple(state[:2])
        if self._kind is LimitStrategy.SLIDING_WINDOW:
            return state[0], state[-1]
        level, at_us = state[:2]
        per_us, full = self._strategy.params.per_us, self._strategy.params.capacity * state[2]
        if self._kind is LimitStrategy.LEAKY_BUCKET:
            return level + at_us * per_us if level else "empty"
        return level - at_us * per_us if level < full else "full"


class PermitSpecification:
    """The permits of a limit, none of which expires during a history: no reply depends on a moment."""

    initial: Any = None
    _OPERATIONS: ClassVar[dict[str, type[PermitOperation]]] = {
        "acquire": AcquirePermit,
        "release": ReleasePermits,
        "renew": RenewPermit,
    }

    def __init__(self, max_permits: int) -> None:
        self._pool = PermitPool("tested", max_permits, 3600 * 1_000_000)

    def apply(self, state: Any, now_us: int, request: tuple[str, str, str]) -> tuple[Any, Any]:
        method, *permit = request
        operation = self._OPERATIONS[method](self._pool, Permit(*permit))
        [new], reply = operation.step([state], 0)  # at one moment, so that equal permits are equal states
        after = state if new is None else None if new is GONE else new
        return after, None if method == "release" else reply.succeeded

    def moments_of(self, state: Any, call: Call, moments: Sequence[int]) -> Sequence[int]:
        return moments[:1]

    def essence(self, state: Any, now_us: int) -> Hashable:
        return state if state is None else frozenset(permit for _, permit in state[0])
