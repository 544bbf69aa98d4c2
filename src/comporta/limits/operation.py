"""Deciding one limit, or several at once, as an operation that any store can apply.

Several limits in one operation are charged together or not at all: each must grant its amount.

Lua version: ``limit.lua``, below the Lua text of the strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from comporta.limits.priority import NO_HEADROOM, Headroom, step_above_floor
from comporta.limits.reply import REPLY_SIZE, LimitReply, build_reply, parse_reply
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE, group_script, limit_script
from comporta.limits.strategies.base import Strategy
from comporta.limits.strategies.outage_share import fallback_strategy
from comporta.stores.base import Operation, Outage, Script, State, StateKey


class LimitDemand(NamedTuple):
    """What an operation wants of one limit: an ``amount`` above 0 takes, 0 peeks, below 0 releases.

    ``fallback`` says how a worker decides while the shared store is unreachable (``outage_share.py``).
    ``current_strategy`` returns the strategy in effect then, under the last override that this process saw.
    ``headroom`` is what the class of the caller leaves to the higher ones.
    """

    strategy: Strategy
    name: str
    key: str
    amount: int
    fallback: str = "share"
    current_strategy: Callable[[], Strategy] | None = None
    headroom: Headroom = NO_HEADROOM


class LimitOperation(Operation[list[LimitReply]]):
    """Take from some limits, peek at them or release to them: all of them or none."""

    __slots__ = ("demands", "max_wait_us")

    def __init__(self, demands: Sequence[LimitDemand], max_wait_us: int = 0) -> None:
        self.demands = demands
        self.max_wait_us = max_wait_us

    @property
    def script(self) -> Script:
        """The script with the strategies of these limits."""
        if len(self.demands) == 1:
            return limit_script(self.demands[0].strategy.name)
        return group_script(frozenset(demand.strategy.name for demand in self.demands))

    @property
    def reply_size(self) -> int:
        """The fields of one reply for each limit."""
        return REPLY_SIZE * len(self.demands)

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of each limit."""
        return [StateKey(f"{LIMIT_SPACE}:{d.name}", d.key, d.strategy) for d in self.demands]

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[list[State | None], list[LimitReply]]:
        """Decide all limits, then charge all or none."""
        steps = [
            self._step_one(demand, state, now_us) for demand, state in zip(self.demands, states, strict=True)
        ]
        all_grant = all(wait_us <= self.max_wait_us for _, wait_us in steps)
        new_states: list[State | None] = []
        replies = []
        for demand, state, (new, wait_us) in zip(self.demands, states, steps, strict=True):
            grants = wait_us <= self.max_wait_us
            kept = new if all_grant or not grants else None  # a refusal changes a state only in time
            new_states.append(kept)
            retry_us = 0 if grants else wait_us
            replies.append(
                build_reply(
                    demand.strategy, kept or state, now_us, wait_us, retry_us, is_peek=not demand.amount
                )
            )
        return new_states, replies

    def _step_one(self, demand: LimitDemand, state: State | None, now_us: int) -> tuple[State | None, int]:
        strategy, amount = demand.strategy, demand.amount
        if amount > 0:
            floor = demand.headroom.floor(strategy, state, now_us, amount)
            return step_above_floor(
                strategy, state, now_us, amount, floor=floor, max_wait_us=self.max_wait_us
            )
        if amount < 0 and state is not None:
            return strategy.release(state, now_us, -amount), 0
        return None, 0 if amount else strategy.effective_at(now_us)[1]

    def script_keys(self) -> list[str]:
        """Return two keys for each limit: its state and its override record."""
        keys = []
        for _, name, key, *_ in self.demands:
            keys.append(f"{LIMIT_SPACE}:{name}:{key}" if key else f"{LIMIT_SPACE}:{name}")
            keys.append(f"{OVERRIDE_SPACE}:{name}")
        return keys

    def script_args(self) -> list[int | str | bytes]:
        """Return one group: the number of limits, then eight arguments for each."""
        args: list[int | str | bytes] = [len(self.demands)]
        for demand in self.demands:
            strategy = demand.strategy
            args += (strategy.name, demand.amount, self.max_wait_us, *strategy.params, demand.headroom.units)
        return args

    def undo(self, reply: Sequence[LimitReply]) -> LimitOperation | None:
        """Return what releases the amounts granted to a cancelled caller; a turn in a queue stays spent."""
        granted = all(limit_reply.wait_us <= self.max_wait_us for limit_reply in reply)
        taken = [demand for demand in self.demands if demand.amount > 0]
        if self.max_wait_us or not granted or not taken:
            return None
        return LimitOperation([demand._replace(amount=-demand.amount) for demand in taken])

    def fallback(self, outage: Outage) -> LimitOperation:
        """Return the same operation on this worker's share of each limit."""
        return LimitOperation([on_local_share(demand, outage) for demand in self.demands], self.max_wait_us)

    def parse(self, raw: Sequence[Any]) -> list[LimitReply]:
        """Parse the replies, or raise the error that the script returned for one of the keys."""
        if len(raw) == REPLY_SIZE and isinstance(raw[0], int):
            return [LimitReply._make(raw)]
        starts = range(0, len(raw), REPLY_SIZE)
        return [
            parse_reply(demand.name, demand.key, raw[start : start + REPLY_SIZE])
            for demand, start in zip(self.demands, starts, strict=True)
        ]


def on_local_share(demand: LimitDemand, outage: Outage) -> LimitDemand:
    """Return the same demand on this worker's share of the limit."""
    strategy = demand.current_strategy() if demand.current_strategy else demand.strategy
    return demand._replace(strategy=fallback_strategy(strategy, demand.name, demand.fallback, outage))
