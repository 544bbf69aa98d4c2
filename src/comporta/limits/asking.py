"""What a flow can want of a limit: a decision, or the rule in force."""

from __future__ import annotations

from typing import Any

from comporta.stores.base import Bound, Stepper


class Ask:
    """Effect: take from the limit; its result is the wait in microseconds."""

    __slots__ = ("_bound", "_cost", "_key")

    def __init__(self, bound: Bound, key: Any, cost: int) -> None:
        self._bound = bound
        self._key = key
        self._cost = cost

    def block(self) -> int:
        """Ask, blocking."""
        return self._bound.take(self._key, self._cost)

    async def wait(self) -> int:
        """Ask, awaiting."""
        return await self._bound.take_async(self._key, self._cost)


class InForce:
    """Effect: find the rule in force, which may have been changed by an operator."""

    __slots__ = ("_bound",)

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def block(self) -> Stepper:
        """Find it, blocking."""
        return self._bound.stepper

    async def wait(self) -> Stepper:
        """Find it, awaiting."""
        return await self._bound.stepper_async()
