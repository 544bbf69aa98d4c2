"""The contract of a limiting strategy: pure decisions over the state of one key.

A strategy holds the parameters of one limit and no state. A store passes it the state of a key, within the
store's own atomic step, and keeps the state that the strategy returns. A strategy reads no clock and does no
I/O.
"""

from __future__ import annotations

from abc import abstractmethod
from math import floor
from typing import NamedTuple

from comporta.stores.base import State
from comporta.stores.bound_limit import Algorithm

CHARGE = -1
"""As ``max_wait_us``: take the cost whether it is available or not, because it was already used elsewhere.

The debt is bounded by one second of a bucket's rate.
"""

SETTLE = -2
"""As ``max_wait_us``: take the cost whether it is available or not; the caller bounds the debt."""

STATE_TTL_US_MIN = 60_000_000
"""A store keeps a state at least this long after its last change: it also counts the last minute."""

EXACT_INT_MAX = 2**53
"""Integers up to this are exact in Lua, whose numbers are doubles. Every configuration stays below."""

WINDOW_US_MAX = 10**14


class LimitUsage(NamedTuple):
    """The use of a key: units left, µs until it counts as unused, units granted in the last minute."""

    remaining: int
    reset_us: int
    recent: int


class LeaseGrant(NamedTuple):
    """A lease that a strategy granted: the new state, how long it may be used, and its id."""

    state: State
    ttl_us: int
    lease_id: int


class EndedLease(NamedTuple):
    """A lease that its holder ends: its id, the leased units, and how many of them were not used."""

    lease_id: int
    lent: int
    unused: int


class LimitParams(NamedTuple):
    """The four integers of a limit, as in scripts and override records.

    A limit with a rate has ``per_us`` and ``unit``: ``unit`` fractions make a token, and ``per_us`` of them
    are refilled every microsecond. A limit with a window has a ``per_us`` of 0 and a ``window_us``; the
    strategy may use its ``unit`` for any purpose.
    """

    capacity: int
    per_us: int
    unit: int
    window_us: int

    @property
    def is_valid(self) -> bool:
        """Whether these can be the parameters of a limit; an operator may have written a record by hand."""
        if max(self) > EXACT_INT_MAX or self.window_us > WINDOW_US_MAX:
            return False
        if self.per_us and self.unit:
            return 0 < self.capacity * self.unit <= EXACT_INT_MAX
        return bool(self.capacity and self.window_us)

    def is_window_over(self, age_us: int) -> bool:
        """Whether a window that began ``age_us`` ago has ended; for a bucket, the time that fills it."""
        if self.per_us:
            return age_us * self.per_us >= self.capacity * self.unit
        return age_us >= self.window_us

    def is_compatible(self, configured: LimitParams) -> bool:
        """Whether these can replace the configured parameters; another program may use another strategy."""
        if configured.per_us:
            return bool(self.per_us and self.unit)
        return not self.per_us and bool(self.window_us) and (bool(self.unit) or not configured.unit)

    def record_text(self, note: str) -> bytes:
        """Return the override record of an operator who sets these parameters."""
        return " ".join([*map(str, self), note]).encode()


class Strategy(Algorithm):
    """A limiting algorithm with the parameters of one limit.

    ``codec`` is the layout of a state in bytes. ``expires_us(state)`` returns the time from which the state
    is equivalent to no state.
    """

    __slots__ = ()

    name: str
    """The name by which configurations and scripts know the algorithm."""

    evictable = True

    params: LimitParams
    """The parameters for the Lua version."""

    @abstractmethod
    def with_params(self, params: LimitParams) -> Strategy:
        """Return a strategy that reads this one's states and has other parameters."""

    @abstractmethod
    def with_override(self, override: bytes | None) -> Strategy:
        """Return a strategy that reads this one's states and obeys an override (``overrides/record.py``)."""

    def effective_at(self, now_us: int) -> tuple[Strategy, int, int]:
        """Return the strategy at a moment, how long it is paused, and its capacity without degradation."""
        return self, 0, self.params.capacity

    @abstractmethod
    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take ``cost`` if it is available.

        Returns the state to store (``None``: unchanged) and a wait in microseconds. A wait of at most
        ``max_wait_us`` means that the cost is granted for use after that wait; a longer one means that it is
        refused, and is the time until a retry. Only a strategy with a queue grants with a wait above 0. With
        a ``max_wait_us`` of ``CHARGE`` or ``SETTLE`` the strategy takes the cost whether it is available or
        not.
        """

    @abstractmethod
    def release(self, state: State, now_us: int, cost: int) -> State:
        """Return the state after the release of ``cost`` units that were taken but not used."""

    @abstractmethod
    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Return the state after a call that was granted ``age_us`` ago turned out to cost another amount.

        An ``amount`` above 0 is a debit, which leaves a debt of at most one capacity; below 0 it is a credit.
        ``None`` means that the state does not change, because the credit is void or the debt is at its
        maximum.
        """

    @abstractmethod
    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the use of a key without changing it."""

    def available(self, state: State | None, now_us: int) -> tuple[int, int]:
        """Return the units left and the µs until the key is unused again: ``usage`` without the traffic."""
        remaining, reset_us, _ = self.usage(state, now_us)
        return remaining, reset_us

    def pace_us(self, units: int) -> int:
        """Return the minimum time to grant some units once nothing is left; 0 if unknown."""
        return 0

    def available_capacity(self, state: State | None, now_us: int) -> int:
        """Return the capacity without leased units, which no caller can take from the state."""
        return self.params.capacity

    def lease_size_max(self, worker_count: int) -> int:
        """Return the most units that one of the workers may lease at once; 1 leases nothing in advance."""
        return 1

    def grant_lease(self, state: State, now_us: int, amount: int, ttl_us: int) -> LeaseGrant:
        """Record that the holder will use ``amount`` of the units just taken within at most ``ttl_us``.

        A strategy that supports no leases inherits this: the lease expires at once.
        """
        return LeaseGrant(state, 0, 0)

    def return_lease(self, state: State, now_us: int, ended: EndedLease, ttl_us: int) -> State | None:
        """Return the state after the return of a lease's unused units; ``None`` if the lease has expired."""
        return None


def ceil_div(amount: int, by: int) -> int:
    """Divide and round up."""
    return -(-amount // by)


def rescale_level(level: int, unit: int, new_unit: int) -> int:
    """Return a level counted in fractions of a token after the size of a fraction changed.

    A server keeps the level as a decimal number of tokens: this rounds as it does (``tokens_text`` in
    ``support.lua``, and the scripts of the buckets).
    """
    if unit == new_unit:
        return level
    tokens = float(format(level / unit, ".14g" if abs(level) < 1e13 else ".17g"))
    return floor(tokens * new_unit + 0.5)
