"""Priority classes of callers, and the headroom that a lower class leaves to the higher ones.

A call names its class and its owner itself (``acquire(priority="batch")``), or inherits both from
:func:`priority`. The module makes no decisions: a limit's ``headroom`` is one more number for its step
(:func:`step_above_floor`), and the wait queue serves higher classes first, then lets owners take turns.

Lua version of :meth:`Headroom.floor`: ``headroom.lua``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from comporta.validators import require_choice

if TYPE_CHECKING:
    from comporta.limits.strategies.base import Strategy
    from comporta.stores.base import State

PRIORITIES = ("interactive", "normal", "batch")
"""The classes, the highest first. A caller that names none is ``"normal"``."""

NORMAL = PRIORITIES.index("normal")
OWNER_CHARS_MAX = 200


class Caller(NamedTuple):
    """Who calls: the rank of its class in ``PRIORITIES``, and its owner, such as a user or a job."""

    rank: int = NORMAL
    owner: str | None = None


DEFAULT_CALLER = Caller()

_current: ContextVar[Caller] = ContextVar("comporta_caller", default=DEFAULT_CALLER)

contexts_entered: list[bool] = []
"""Not empty once :func:`priority` was used in this process; until then fast paths skip the lookup."""


@contextmanager
def priority(name: str | None = None, *, owner: str | None = None) -> Iterator[None]:
    """Set the class and the owner of all calls in a ``with`` block, for a whole request or job.

    ``name`` is ``"interactive"``, ``"normal"`` or ``"batch"``. What you leave out keeps its value from
    outside the block. Coroutines and threads that copy the context (``asyncio.to_thread``) inherit both.
    """
    caller = resolve_caller(name, owner)
    if not contexts_entered:
        contexts_entered.append(True)
    token = _current.set(caller)
    try:
        yield
    finally:
        _current.reset(token)


def has_own_caller() -> bool:
    """Whether a block of :func:`priority` surrounds the call."""
    return _current.get() is not DEFAULT_CALLER


def resolve_caller(name: str | None, owner: str | None) -> Caller:
    """Return the caller with the given class and owner; the context replaces ``None``."""
    caller = _current.get()
    if name is None and owner is None:
        return caller
    rank = caller.rank if name is None else priority_rank(name)
    return Caller(rank, caller.owner if owner is None else check_owner(owner))


def priority_rank(name: str) -> int:
    """Return the rank of a class; 0 is the highest."""
    return PRIORITIES.index(require_choice("priority", name, PRIORITIES))


def check_owner(owner: str) -> str:
    """Return the owner if it is a text of valid length; raise an error otherwise."""
    if not isinstance(owner, str):
        raise TypeError(f"owner must be a str, got {owner!r:.50}")
    if not 0 < len(owner) <= OWNER_CHARS_MAX:
        raise ValueError(f"owner must be 1 to {OWNER_CHARS_MAX} characters, got {len(owner)}")
    return owner


class Headroom(NamedTuple):
    """The units of the configured ``capacity`` that a class leaves to higher classes."""

    units: int = 0
    capacity: int = 1

    def floor(self, strategy: Strategy, state: State | None, now_us: int, cost: int) -> int:
        """Return how many units must be left after ``cost`` is taken.

        The headroom shrinks with the capacity (degradation, outage share, leased units), and never exceeds
        what an unused limit has left after the cost; otherwise the class could never take anything.
        """
        if not self.units:
            return 0
        available = strategy.effective_at(now_us)[0].available_capacity(state, now_us)
        scaled = int(float(self.units) * available / self.capacity)  # in floats, as Lua does
        return max(0, min(scaled, available - cost))


NO_HEADROOM = Headroom()


def step_above_floor(
    strategy: Strategy, state: State | None, now_us: int, cost: int, *, floor: int, max_wait_us: int = 0
) -> tuple[State | None, int]:
    """Take ``cost`` if ``floor`` units are left afterwards, that is, if the limit would grant both together.

    Returns what :meth:`Strategy.step` returns; after a refusal the wait lasts until both are available.
    """
    if floor:
        new, wait_us = strategy.step(state, now_us, cost + floor, max_wait_us)
        if wait_us > max_wait_us:
            return new, wait_us
    return strategy.step(state, now_us, cost, max_wait_us)
