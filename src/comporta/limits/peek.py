"""Asking a limit without taking from it: the use of a key, and how long a caller with a cost would wait.

Lua version: ``peek.lua``, below the Lua text of the strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.limits.operation import LimitDemand, on_local_share
from comporta.limits.reply import REPLY_SIZE, LimitReply, build_reply, parse_reply
from comporta.limits.scripts import LIMIT_SPACE, peek_script
from comporta.stores.base import Operation, Outage, Script, State, StateKey, key_text


class PeekOperation(Operation[LimitReply]):
    """Return the use of a key, and the wait of a caller that would take the amount of the demand."""

    __slots__ = ("demand",)

    def __init__(self, demand: LimitDemand) -> None:
        self.demand = demand

    @property
    def script(self) -> Script:
        """The script of the strategy, for any key of the limit."""
        strategy = self.demand.strategy
        return peek_script(strategy.name, self.demand.name, tuple(strategy.params))

    @property
    def reply_size(self) -> int:
        """The fields of one reply."""
        return REPLY_SIZE

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key."""
        return [StateKey(f"{LIMIT_SPACE}:{self.demand.name}", self.demand.key, self.demand.strategy)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], LimitReply]:
        """Decide as a caller of this cost would be decided, and keep what it would have taken."""
        strategy, amount = self.demand.strategy, self.demand.amount
        new, wait_us = strategy.step(states[0], now_us, amount)
        kept = new if wait_us else None  # a refusal changes a state only in time
        reply = build_reply(strategy, kept or states[0], now_us, wait_us, wait_us, is_peek=True)
        return [kept], reply

    def script_keys(self) -> tuple[str]:
        """Return the state of the key."""
        return (key_text(f"{LIMIT_SPACE}:{self.demand.name}", self.demand.key),)

    def script_args(self) -> tuple[int]:
        """Return the amount."""
        return (self.demand.amount,)

    def fallback(self, outage: Outage) -> PeekOperation:
        """Return what asks this worker's share of the limit."""
        return PeekOperation(on_local_share(self.demand, outage))

    def parse(self, raw: Sequence[Any]) -> LimitReply:
        """Parse the reply, or raise the error that the script returned for the key."""
        return parse_reply(self.demand.name, self.demand.key, raw)
