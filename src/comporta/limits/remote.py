"""A rule on a state that is shared: what :class:`comporta.stores.base.Bound` is for one's own.

On a server every decision asks it (:class:`RemoteBound`). On this machine it is made here as long as all is
well (:class:`GuardedBound`), and goes the way of every other operation when it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakMethod

from comporta.errors import StateError
from comporta.limits.in_force import Timed
from comporta.limits.key import state_key
from comporta.limits.operation import CHANGES
from comporta.limits.rule import Rule
from comporta.limits.take import Asked, Take
from comporta.stores.base import Busy, LocalBound, LocalStore, Part, StepOf, Store
from comporta.stores.failover import FailoverStore
from comporta.stores.records import RECORD

if TYPE_CHECKING:
    from comporta.stores.base import Stepper
    from comporta.stores.shared_bound import SharedBound

R = TypeVar("R")


def bind(store: LocalStore, asked: Asked) -> LocalBound:
    """Tie a limit to a store that decides in this process."""
    return store.bind(asked.rule, asked.space, Part(CHANGES, asked.name, RECORD), state_key)


class RemoteBound:
    """A rule on a store that another machine keeps; what is in force is read by the script.

    It is followed here all the same: in an outage it is the changed or degraded limit that is shared. A pause
    is not: it ends by the server's time. How long it still lasts is only estimated, for those who wait.
    """

    __slots__ = ("__weakref__", "_asked", "_in_force", "_pause", "_store")

    def __init__(self, store: Store, asked: Asked) -> None:
        self._store = store
        self._asked = asked
        self._in_force = asked.rule
        self._pause = (0, 0)
        asked.known = lambda: self._in_force
        if isinstance(store, FailoverStore):
            store.keeper.follow(CHANGES, asked.name, WeakMethod(self.revise))

    @property
    def stepper(self) -> Rule:
        """The rule as it was configured, since the script knows of changes."""
        return self._asked.rule

    async def stepper_async(self) -> Rule:
        """Return the same."""
        return self._asked.rule

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

    def revise(self, change: bytes | None) -> None:
        """Note what is in force."""
        self._in_force = rule = self._asked.rule.revised(change)
        until_us, length_us = (
            (rule.record.until_us, rule.record.length_us) if isinstance(rule, Timed) else (0, 0)
        )
        if until_us != self._pause[0]:
            self._pause = (until_us, self._store.clock.now_ns() // 1000 + length_us if until_us else 0)

    def paused_us(self, now_us: int) -> int:
        """Return how long the pause may still last, at the most, by the clock of this process."""
        return max(0, self._pause[1] - now_us)


class GuardedBound:
    """A rule on a store of this machine that may fail, or may not be there yet."""

    attempt: Callable[[Any, int], int]

    def __init__(self, store: FailoverStore, asked: Asked) -> None:
        self._store = store
        self._asked = asked
        self._bound: SharedBound | None = None
        asked.known = self._known
        self.attempt = self._hot_path()

    @property
    def stepper(self) -> Stepper:
        """The rule in force, as far as it can be known."""
        if self._store.alone is None:
            try:
                return self._opened().stepper
            except StateError as error:
                self._store.fell(error)
        return self._known()

    async def stepper_async(self) -> Stepper:
        """Return the rule in force, as far as it can be known, without holding up the event loop."""
        if self._store.alone is None:
            try:
                return await self._opened().stepper_async()
            except StateError as error:
                self._store.fell(error)
        return self._known()

    def take(self, key: Any, cost: int) -> int:
        """Decide, waiting as long as the store allows, or alone."""
        if self._store.direct:
            try:
                return self._opened().take(key, cost)
            except StateError as error:
                return self._alone(error, key, cost)
        return self._store.apply(Take(self._asked, state_key(key), cost))

    async def take_async(self, key: Any, cost: int) -> int:
        """Decide, without holding up the event loop, or alone."""
        if self._store.direct:
            try:
                return await self._opened().take_async(key, cost)
            except StateError as error:
                return self._alone(error, key, cost)
        return await self._store.apply_async(Take(self._asked, state_key(key), cost))

    def short_way(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a way that is open as long as all is well; else the store is to be asked."""
        store = self._store
        decide: Callable[[Any, int], R] | None = None

        def attempt(key: Any, cost: int) -> R:
            nonlocal decide
            if not store.direct:
                raise Busy
            if decide is None:
                decide = self._opened().short_way(step_of)
            return decide(key, cost)

        return attempt

    def _alone(self, error: StateError, key: Any, cost: int) -> int:
        return self._store.fell(error).apply(Take(self._asked, state_key(key), cost))

    def _known(self) -> Rule:
        return self._asked.rule if self._bound is None else cast(Rule, self._bound.known)

    def _opened(self) -> SharedBound:
        """Return the bound rule; the file may be there only now."""
        if self._bound is None:
            self._bound = cast("SharedBound", bind(cast(LocalStore, self._store.primary), self._asked))
        return self._bound

    def _hot_path(self) -> Callable[[Any, int], int]:
        store = self._store
        decide: Callable[[Any, int], int] | None = None

        def attempt(key: Any, cost: int) -> int:
            nonlocal decide
            if store.direct:
                try:
                    if decide is None:
                        decide = self._opened().attempt
                    return decide(key, cost)
                except StateError as error:
                    return self._alone(error, key, cost)
            if store.alone is None:
                raise Busy  # nobody has used it yet: that may take a moment
            return store.apply(Take(self._asked, state_key(key), cost))

        return attempt
