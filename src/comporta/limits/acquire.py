"""Taking from one limit: the most frequent operation, with the smallest possible request and reply.

All calls for one limit share its parameters and its override record, so a batch sends them only once for any
number of keys, and the reply for each key is one number.

Lua version: ``acquire.lua``, below the Lua text of the strategy and ``one_limit.lua``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from comporta.limits.claims import ClaimAttempt
from comporta.limits.operation import LimitDemand, LimitOperation
from comporta.limits.priority import NORMAL
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import LIMIT_SPACE, acquire_script
from comporta.limits.strategies.base import Strategy
from comporta.limits.strategies.outage_share import fallback_strategy
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.outage_info import Outage

_ATTEMPT = ClaimAttempt(0, NORMAL)


class LimitDefinition:
    """One limit as operations address it: its strategy, its name, and values derived from both once.

    ``fallback`` says how a worker decides during an outage (``outage_share.py``). ``current_strategy``
    returns the strategy under the last override that this process saw. ``has_claims`` is true if other
    processes may wait for the same limit.
    """

    __slots__ = (
        *("_local_share", "closed_after_us", "current_strategy", "fallback", "has_claims"),
        *("name", "script", "space", "strategy"),
    )

    def __init__(
        self,
        strategy: Strategy,
        name: str,
        fallback: str = "share",
        closed_after_us: int = 0,
        *,
        has_claims: bool = True,
    ) -> None:
        self.has_claims = has_claims
        self.strategy = strategy
        self.name = name
        self.fallback = fallback
        self.closed_after_us = closed_after_us
        self.current_strategy: Callable[[], Strategy] = lambda: strategy
        self._local_share: tuple[Outage, LimitDefinition] | None = None
        self.space = f"{LIMIT_SPACE}:{name}"
        self.script = acquire_script(strategy.name, name, tuple(strategy.params))

    def demand(self, key: str, amount: int) -> LimitDemand:
        """Return the demand of a caller of the class "normal" that does not wait."""
        attempt = _ATTEMPT if self.has_claims else None
        return LimitDemand(self.strategy, self.name, key, amount, attempt=attempt)

    def local_share(self, outage: Outage) -> LimitDefinition:
        """Return this worker's share of the limit, the same object throughout an outage."""
        cached = self._local_share
        if cached is None or cached[0] is not outage:
            share = fallback_strategy(
                self.current_strategy(), self.name, self.fallback, outage, self.closed_after_us
            )
            cached = self._local_share = (outage, LimitDefinition(share, self.name, has_claims=False))
        return cached[1]


class AcquireOperation(Operation[int]):
    """Take an amount from one limit; the reply is the wait in microseconds.

    The caller does not wait and is of the class "normal": it leaves untouched what waiters of that class or a
    higher one have claimed.
    """

    __slots__ = ("_definition", "amount", "key", "script")

    script: Script

    def __init__(self, definition: LimitDefinition, key: str, amount: int) -> None:
        self._definition = definition
        self.script = definition.script
        self.key = key
        self.amount = amount

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the claims on it."""
        return self._demand.state_keys

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], int]:
        """Take the amount if it is available and not claimed."""
        demand = self._demand
        state, claims = demand.split_states(states)
        new, wait_us = demand.take(state, claims, now_us)
        if demand.attempt is None:
            return [new], wait_us
        return [new, demand.claims_after(claims, now_us, wait_us)], wait_us

    @property
    def _demand(self) -> LimitDemand:
        return self._definition.demand(self.key, self.amount)

    def script_keys(self) -> tuple[str]:
        """Return the state of the key."""
        return (key_text(self._definition.space, self.key),)

    def script_args(self) -> tuple[int]:
        """Return the amount."""
        return (self.amount,)

    def undo(self, reply: int) -> LimitOperation | None:
        """Return the operation that releases the amount granted to a cancelled caller."""
        return None if reply else LimitOperation([self._demand.released])

    def fallback(self, outage: Outage) -> AcquireOperation:
        """Return the operation that takes from this worker's share of the limit."""
        return AcquireOperation(self._definition.local_share(outage), self.key, self.amount)

    def parse(self, raw: Sequence[Any]) -> int:
        """Parse the wait, or raise the error that the script returned for the key."""
        wait_us = raw[0]
        if isinstance(wait_us, int):
            return wait_us
        raise unusable_key_error(self._definition.name, self.key, wait_us)
