"""Reading a limit without taking from it: the use of a key, and how long a caller would wait for a cost.

Lua version: ``peek.lua``, below the Lua text of the strategy, ``headroom.lua`` and ``one_limit.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.limits.one_limit import OneLimitOperation
from comporta.limits.operation import on_local_share
from comporta.limits.reply import REPLY_SIZE, LimitReply, build_reply, parse_reply
from comporta.limits.scripts import peek_script
from comporta.stores.base import Script, State
from comporta.stores.outage_info import Outage


class PeekOperation(OneLimitOperation[LimitReply]):
    """Return the use of a key, and the wait of a caller that would take the amount of the demand."""

    __slots__ = ()

    @property
    def script(self) -> Script:
        """The script of the strategy, for any key of the limit."""
        strategy = self.demand.strategy
        return peek_script(strategy.name, self.demand.name, tuple(strategy.params))

    @property
    def reply_size(self) -> int:
        """The fields of one reply."""
        return REPLY_SIZE

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], LimitReply]:
        """Decide as for a caller with this cost, and take nothing."""
        state, claims = self.demand.split_states(states)
        new, wait_us = self.demand.take(state, claims, now_us)
        kept = new if wait_us else None  # a refusal only brings a state up to date
        reply = build_reply(self.demand.strategy, kept or state, now_us, wait_us, wait_us, is_peek=True)
        return [kept, *[None] * (len(states) - 1)], reply

    def fallback(self, outage: Outage) -> PeekOperation:
        """Return the operation that peeks at this worker's share of the limit."""
        return PeekOperation(on_local_share(self.demand, outage))

    def parse(self, raw: Sequence[Any]) -> LimitReply:
        """Parse the reply, or raise the error that the script returned for the key."""
        return parse_reply(self.demand.name, self.demand.key, raw)
