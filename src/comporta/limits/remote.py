"""A rule on a store that another machine keeps: every decision asks it."""

from __future__ import annotations

from typing import Any

from comporta.limits.key import state_key
from comporta.limits.operation import LimitOperation, Question
from comporta.limits.rule import Rule
from comporta.stores.base import Busy, Store


class RemoteBound:
    """What :class:`comporta.stores.base.Bound` is for a local store; a change is read by the script."""

    __slots__ = ("_name", "_store", "stepper")

    def __init__(self, store: Store, rule: Rule, name: str) -> None:
        self._store = store
        self._name = name
        self.stepper = rule

    async def stepper_async(self) -> Rule:
        """Return the rule; the script knows of changes."""
        return self.stepper

    @staticmethod
    def attempt(key: Any, cost: int) -> int:
        """Nothing can be decided here without asking."""
        raise Busy

    def take(self, key: Any, cost: int) -> int:
        """Ask, in one round trip."""
        return self._store.apply(self._asking(key, cost))[0].wait_us

    async def take_async(self, key: Any, cost: int) -> int:
        """Ask, together with the others of this tick."""
        return (await self._store.apply_async(self._asking(key, cost)))[0].wait_us

    def _asking(self, key: Any, cost: int) -> LimitOperation:
        return LimitOperation([Question(self.stepper, self._name, state_key(key), cost)])
