"""Limits tied to a store: the direct path from a key to a decision, without an operation.

An engine that decides in this process returns a :class:`LocalBoundLimit` from ``Store.bind``. It applies the
algorithm of the limit to the state of a key and does not know what the algorithm means.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from comporta.stores.base import Operation, State, StateKey, StateType

R = TypeVar("R")


class Algorithm(StateType):
    """A state type with one frequent operation: take an amount, or return how long to wait."""

    __slots__ = ()

    lasting: bool = True
    """Whether a refusal holds until the time that it names; false if the algorithm may end sooner."""

    @abstractmethod
    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` from a state; returns the new state (``None``: unchanged) and the wait in µs.

        See :meth:`comporta.limits.strategies.base.Strategy.step`.
        """

    @abstractmethod
    def with_override(self, override: bytes | None) -> Algorithm:
        """Return the algorithm under an override recorded by an operator (``None``: no override)."""


Step = Callable[[State | None, int, int], tuple[State | None, R]]
"""From a state, the time and an amount to the new state (``None``: unchanged) and a reply."""

StepOf = Callable[[Any], Step[R]]


class WouldBlock(Exception):  # noqa: N818 - a signal between a store and its caller, not an error
    """The decision cannot be made without waiting."""


class FastPathBlocked(WouldBlock):
    """The decision also depends on another state, so only an operation can make it."""


class BoundLimit(ABC):
    """An algorithm tied to a store: the direct path for the most frequent operation.

    Keys may be anything that ``Binding.key_text`` turns into the text of a key.
    """

    __slots__ = ()

    decides_in_process: bool = True
    """Whether ``try_acquire`` can answer without a round trip."""

    fails_over: bool = False
    """Whether this limit decides from a local share while its engine fails; it has an ``engine_limit``."""

    engine_limit: LocalBoundLimit | None
    """The engine's limit, for a limit that ``fails_over``; ``None`` until the engine is open.

    While the store ``is_healthy``, callers may use it directly, if they return to this limit after an error.
    """

    @property
    def remote(self) -> Any:
        """The limit's remote side if a server decides; ``None`` if this process does."""
        return None

    @property
    def leases(self) -> Any:
        """The lease client if the limit uses leases, else ``None``."""
        return None

    @property
    def shadow(self) -> Any:
        """The counter of refusals if the limit is in shadow mode, else ``None``."""
        return None

    try_acquire: Callable[[Any, int], int]
    """Apply ``step`` to a key and return the wait in microseconds, or raise ``WouldBlock``."""

    acquire: Callable[[Any, int], int]
    """Do the same, waiting as long as the store allows; blocking."""

    @property
    @abstractmethod
    def algorithm(self) -> Algorithm:
        """The algorithm in effect: the bound one under the current override."""

    @abstractmethod
    async def algorithm_async(self) -> Algorithm:
        """Return the algorithm in effect without blocking the event loop."""

    @property
    def cached_algorithm(self) -> Any:
        """The algorithm in effect as this process last saw it. Never blocks.

        A bound limit whose ``algorithm`` may wait, for a lock or a server, must override this.
        """
        return self.algorithm

    @abstractmethod
    def acquire_async(self, key: Any, cost: int) -> Coroutine[Any, Any, int]:
        """Do what ``acquire`` does without blocking the event loop."""


class LocalBoundLimit(BoundLimit):
    """An algorithm tied to a store of this process or machine, which can also run other steps."""

    __slots__ = ()

    @abstractmethod
    def fast_path(self, step_of: StepOf[R]) -> Callable[[Any, int], R]:
        """Return a ``try_acquire`` for another step, which ``step_of`` makes from the algorithm."""


class Binding(NamedTuple):
    """What a store needs to bind a limit.

    ``override`` is the record that bound limits follow. ``key_text`` converts a caller's key to text and
    rejects invalid keys; it is called only for keys that the store does not know yet. ``operation`` makes the
    operation that takes an amount from a key, for stores that apply operations.
    """

    algorithm: Algorithm
    space: str
    override: StateKey
    key_text: Callable[[Any], str]
    operation: Callable[[str, int], Operation[int]]
