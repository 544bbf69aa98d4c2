"""A rule on a store that another machine keeps: every decision asks it."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from comporta.limits.key import state_key
from comporta.limits.rule import Rule
from comporta.limits.take import Asked, Take
from comporta.stores.base import Busy, Store


class RemoteBound:
    """What :class:`comporta.stores.base.Bound` is for a local store; a change is read by the script."""

    __slots__ = ("_asked", "_store", "stepper")

    def __init__(self, store: Store, rule: Rule, name: str) -> None:
        self._store = store
        self._asked = Asked(rule, name)
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
        return self._store.apply(Take(self._asked, state_key(key), cost))

    def take_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Ask, together with the others of this tick."""
        return self._store.apply_async(Take(self._asked, state_key(key), cost))
