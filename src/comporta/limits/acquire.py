"""Taking from one limit: the hot operation, with the smallest possible request and reply.

All calls for one limit share its parameters and its override record, so a batch sends them once however many
keys it contains, and the reply for each key is one number.

Lua version: ``acquire.lua``, below the Lua text of the strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import LIMIT_SPACE, acquire_script
from comporta.limits.strategies.base import Strategy
from comporta.limits.strategies.outage_share import fallback_strategy
from comporta.stores.base import Operation, Outage, Script, State, StateKey, key_text


class LimitDefinition:
    """One limit as operations address it: strategy, name, and what they derive from both once.

    ``fallback`` says how a worker decides during an outage (``outage_share.py``). ``current_strategy``
    returns the strategy under the last override that this process saw.
    """

    __slots__ = ("_local_share", "current_strategy", "fallback", "name", "script", "space", "strategy")

    def __init__(self, strategy: Strategy, name: str, fallback: str = "share") -> None:
        self.strategy = strategy
        self.name = name
        self.fallback = fallback
        self.current_strategy: Callable[[], Strategy] = lambda: strategy
        self._local_share: tuple[Outage, LimitDefinition] | None = None
        self.space = f"{LIMIT_SPACE}:{name}"
        self.script = acquire_script(strategy.name, name, tuple(strategy.params))

    def local_share(self, outage: Outage) -> LimitDefinition:
        """Return this worker's share of the limit, the same object throughout an outage."""
        cached = self._local_share
        if cached is None or cached[0] is not outage:
            share = fallback_strategy(self.current_strategy(), self.name, self.fallback, outage)
            cached = self._local_share = (outage, LimitDefinition(share, self.name))
        return cached[1]


class AcquireOperation(Operation[int]):
    """Take an amount from one limit; the reply is the wait in microseconds."""

    __slots__ = ("_definition", "amount", "key", "script")

    script: Script

    def __init__(self, definition: LimitDefinition, key: str, amount: int) -> None:
        self._definition = definition
        self.script = definition.script
        self.key = key
        self.amount = amount

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key."""
        return [StateKey(self._definition.space, self.key, self._definition.strategy)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Decide."""
        new, wait_us = self._definition.strategy.step(states[0], now_us, self.amount)
        return [new], wait_us

    def script_keys(self) -> tuple[str]:
        """Return the state of the key."""
        return (key_text(self._definition.space, self.key),)

    def script_args(self) -> tuple[int]:
        """Return the amount."""
        return (self.amount,)

    def undo(self, reply: int) -> LimitOperation | None:
        """Return what releases the amount granted to a cancelled caller."""
        if reply:
            return None
        definition = self._definition
        return LimitOperation([LimitDemand(definition.strategy, definition.name, self.key, -self.amount)])

    def fallback(self, outage: Outage) -> AcquireOperation:
        """Return what takes from this worker's share of the limit."""
        return AcquireOperation(self._definition.local_share(outage), self.key, self.amount)

    def parse(self, raw: Sequence[Any]) -> int:
        """Parse the wait, or raise the error that the script returned for the key."""
        wait_us = raw[0]
        if isinstance(wait_us, int):
            return wait_us
        raise unusable_key_error(self._definition.name, self.key, wait_us)
