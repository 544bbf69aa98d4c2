"""What a strategy declares about itself so that a configuration can name it.

A subclass is a complete strategy: limits, leases, scripts, settings and the fallback during an outage read
everything they need from it. ``registry.py`` keeps the strategies by name.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from comporta.clock import to_us
from comporta.limits.overrides.record import apply_override
from comporta.limits.strategies.base import SETTLE, LimitParams, Strategy
from comporta.stores.lua import lua

if TYPE_CHECKING:
    from comporta.clock import Clock
    from comporta.limits.config import LimitConfig
    from comporta.stores.base import State


class RegisteredStrategy(Strategy):
    """A strategy that ``LimitConfig(strategy=...)`` can name.

    A subclass sets ``name``, which is also the name of its Lua function, and implements the abstract methods
    here and in :class:`Strategy`.
    """

    __slots__ = ()

    needs_window: bool = False
    """Whether the strategy counts ``capacity`` in each ``window``; if not, it uses ``rate``."""

    has_queue: bool = False
    """Whether the strategy assigns a turn in advance, so that a caller sleeps instead of retrying."""

    short_name: str = ""
    """Start of the default name of a limiter; empty: the strategy's name."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: LimitConfig) -> RegisteredStrategy:
        """Return the strategy with the numbers of a configuration."""

    @classmethod
    def check_config(cls, config: LimitConfig) -> None:
        """Raise ``ValueError`` for numbers that this strategy cannot count; ranges are already checked."""

    @classmethod
    def lease_us(cls, config: LimitConfig) -> int:
        """Return how long a lease may keep units from other workers."""
        return to_us(float(config.lease))

    @classmethod
    def limit_text(cls, config: LimitConfig) -> str:
        """Return the numbers of a limit as people write them."""
        if cls.needs_window:
            return f"{config.capacity} in {config.window:g} s"
        return f"{config.rate:g}/s burst {config.capacity}"

    def on_clock(self, clock: Clock) -> RegisteredStrategy:
        """Return the strategy for states whose times come from a clock of this process, not a server's.

        The difference matters only to a strategy that counts by the calendar.
        """
        return self

    @staticmethod
    @abstractmethod
    def lua() -> str:
        """Return the Lua text of ``step`` and ``release``: a local function with the name of the strategy.

        ``limits/support.lua`` and ``limits/strategies/recent_traffic.lua`` are above it. The function
        receives ``key, now_us, amount, max_wait_us, commit, capacity, per_us, unit, window_us, debt``; an
        amount below 0 releases units, and without ``commit`` it must not grant. It returns the wait, the
        units left, µs until the key is unused again, the record of recent traffic, the time of that record,
        and the units in use (nil: the capacity without the units left), or only an error text if the key is
        unusable.
        """

    @staticmethod
    def lease_lua() -> str:
        """Return the Lua text of ``grant_lease(key, amount)`` and of ``return_lease``.

        ``return_lease(key, lease_id, lent, unused)`` takes the unused units back. The text of ``lua()`` and
        ``limits/leases/params.lua`` are above it. The default supports no leases.
        """
        return lua("limits/leases/no_lease")

    @staticmethod
    def acquire_lua() -> str:
        """Return Lua text for the start of the scripts that take from one limit.

        They are ``limits/acquire.lua`` and ``limits/claims.lua``. The text may return a reply for the most
        frequent decisions, and must decide as ``lua()`` does.
        """
        return ""

    @staticmethod
    def settle_lua() -> str:
        """Return the Lua text of ``credit(key, amount, age_us)`` and ``debit(key, amount, age_us)``.

        Each changes the state of a key as ``settle`` does, and returns whether it did. The text of ``lua()``
        and ``limits/budgets/params.lua`` are above it.
        """
        return lua("limits/budgets/settle_newest")

    @abstractmethod
    def with_params(self, params: LimitParams) -> RegisteredStrategy:
        """Return a strategy that reads this one's states and has other parameters."""

    @abstractmethod
    def outage_share(self, worker_count: int, since_us: int) -> tuple[RegisteredStrategy, State]:
        """Return the strategy of one of the workers during an outage, and the state it starts with.

        All shares together must keep the limit, and each must grant something. The state starts empty at
        ``since_us``, because other workers may have just spent what the shared state held.
        """

    @abstractmethod
    def used_units(self, state: State, now_us: int) -> int:
        """Return the units that still count against the limit, debt included."""

    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Release a credit like any other unit, and take a debit now."""
        if amount < 0:
            return None if state is None else self.release(state, now_us, -amount)
        amount = min(amount, self.debit_max(0 if state is None else self.used_units(state, now_us)))
        return self.step(state, now_us, amount, SETTLE)[0] if amount > 0 else None

    def debit_max(self, used: int) -> int:
        """Return how many units a debit may add to those in use: the debt is at most one capacity."""
        return 2 * self.params.capacity - used

    def with_override(self, override: bytes | None) -> Strategy:
        """Return a strategy that reads this one's states and obeys an override record."""
        return apply_override(self, override)
