"""The common base of operations that ask one limit for something other than a decision.

Lua version: ``one_limit.lua``, with which their scripts begin.
"""

from __future__ import annotations

from comporta.limits.claims import NO_ATTEMPT
from comporta.limits.operation import LimitDemand
from comporta.stores.base import Operation, R_co, StateKey


class OneLimitOperation(Operation[R_co]):
    """An operation on the state of one key of a limit; a demand says which, and how much."""

    __slots__ = ("demand",)

    def __init__(self, demand: LimitDemand) -> None:
        self.demand = demand

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the claims on it if they count."""
        return self.demand.state_keys

    def script_keys(self) -> tuple[str]:
        """Return the state of the key."""
        return (self.demand.state_text,)

    def script_args(self) -> tuple[int, int, int]:
        """Return the amount, the headroom, and the rank of the caller's class."""
        return self.demand.amount, self.demand.headroom.units, (self.demand.attempt or NO_ATTEMPT).rank
