"""How a worker decides a limit while the shared store is unreachable: its share, everything, or nothing.

The share of one of N workers is the limit divided by N, so that all shares together give exactly the rate of
the limit. A share is never zero: it holds at least one token, or one unit per stretched window. N idle
workers may therefore grant up to N tokens at one moment even if the limit's burst is smaller, and in any
window each worker grants less than one token too many. Rounding has no other cost.

A share starts empty when the outage begins, because other workers may have just spent what the shared state
held. It counts what it grants and reports the count when the store is reachable again. From the report until
the worker uses the store again, it grants nothing, because the report would not include it.

Each strategy declares its own share (``RegisteredStrategy.outage_share``); this module counts and reports.
"""

from __future__ import annotations

from comporta.limits.charge import ChargeOperation
from comporta.limits.overrides.record import without_expiry
from comporta.limits.strategies.base import LimitParams, LimitUsage, Strategy
from comporta.limits.strategies.registered_strategy import RegisteredStrategy
from comporta.stores.base import Codec, State
from comporta.stores.outage_info import Outage
from comporta.stores.records import NEVER_US

CLOSED_RETRY_US = 1_000_000
"""When to retry if nothing can be granted while the outage lasts."""

ENDING_RETRY_US = 50_000
"""When to retry while a worker rejoins: it grants nothing between its last report and its first call."""


class OutageShare(Strategy):
    """A strategy divided by the number of workers.

    State: units granted but not reported, and the state of the share.
    """

    __slots__ = (
        "_closes_us",
        "_full_strategy",
        "_initial_state",
        "_limit_name",
        "_refusal_us",
        "_reported_share",
        "_share",
        "_since_us",
        "codec",
        "name",
        "params",
    )

    codec: Codec

    evictable = False
    """Its states are kept in memory only, and the codec does not fit them."""

    def __init__(
        self, strategy: RegisteredStrategy, limit_name: str, outage: Outage, closes_us: int = NEVER_US
    ) -> None:
        self._closes_us = closes_us
        self._full_strategy = strategy
        self._limit_name = limit_name
        self._since_us = outage.since_us
        self._refusal_us = ENDING_RETRY_US if outage.is_ending else CLOSED_RETRY_US if outage.full else 0
        self._share, self._initial_state = strategy.outage_share(outage.worker_count, outage.since_us)
        self._reported_share = _reported_share(strategy, self._share, outage)
        self.name = self._share.name
        self.codec = self._share.codec
        self.params = self._share.params

    def expires_us(self, state: State) -> int:
        """Keep units that are not reported for as long as the share's own state."""
        return self._reported_share.expires_us(state[1])

    def with_params(self, params: LimitParams) -> OutageShare:
        """Return the same share, to which records of the shared store do not apply."""
        return self

    def with_override(self, override: bytes | None) -> OutageShare:
        """Return the same share: workers do not see overrides during an outage."""
        return self

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Take from the share, unless the outage is ending or there is no room for another key."""
        refusal_us = self._refusal_us or (CLOSED_RETRY_US if now_us >= self._closes_us else 0)
        if refusal_us:
            return None, max(refusal_us, max_wait_us + 1)
        granted, own = state or (0, self._initial_state)
        new, wait_us = self._share.step(own, now_us, cost, max_wait_us)
        if new is None:
            return None, wait_us
        return (granted + (cost if wait_us <= max_wait_us else 0), new), wait_us

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Give back what this share granted, but not what the shared store granted before the outage."""
        granted, own = state
        released = min(cost, granted)
        return granted - released, self._share.release(own, now_us, released)

    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Debit this share, and credit what it granted; what the shared store granted stays spent."""
        granted, own = state or (0, self._initial_state)
        if amount < 0:
            amount = -min(-amount, granted) if now_us - age_us >= self._since_us else 0
        new = self._share.settle(own, now_us, amount, age_us) if amount else None
        return None if new is None else (granted + amount, new)

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the use of the share; nothing remains while it refuses everything."""
        if self._refusal_us or now_us >= self._closes_us:
            return LimitUsage(0, 0, 0)
        return self._share.usage((state or (0, self._initial_state))[1], now_us)

    def take_report(
        self, space: str, key: str, state: State, now_us: int
    ) -> tuple[ChargeOperation | None, State | None]:
        """Return the operation that charges the shared limit with units granted here that still count."""
        granted, own = state
        if not granted:
            return None, None
        amount = min(granted, self._reported_share.used_units(own, now_us))
        charge = ChargeOperation(self._full_strategy, self._limit_name, key, amount)
        return charge if amount > 0 else None, (0, own)

    def with_outage(self, outage: Outage) -> OutageShare:
        """Return the share for a larger number of workers."""
        return OutageShare(self._full_strategy, self._limit_name, outage, self._closes_us)


def _reported_share(
    strategy: RegisteredStrategy, share: RegisteredStrategy, outage: Outage
) -> RegisteredStrategy:
    """Return the strategy that computes how many of the granted units still count against the limit.

    A share that became smaller during the outage may have granted more before than it holds now. The report
    therefore uses its first capacity and its present rate: it includes all units that were not refilled
    meanwhile, and perhaps some that were.
    """
    if outage.first_worker_count in {0, outage.worker_count}:
        return share
    first_share, _ = strategy.outage_share(outage.first_worker_count, outage.since_us)
    return share.with_params(share.params._replace(capacity=first_share.params.capacity))


class ConstantStrategy(Strategy):
    """A strategy that grants everything or, with a wait, nothing; it keeps no state."""

    __slots__ = ("_wait_us", "codec", "name", "params")

    codec: Codec

    def __init__(self, strategy: Strategy, wait_us: int) -> None:
        self._wait_us = wait_us
        self.name = strategy.name
        self.codec = strategy.codec
        self.params = strategy.params

    def expires_us(self, state: State) -> int:
        """Return 0: there is no state."""
        return 0

    def with_params(self, params: LimitParams) -> ConstantStrategy:
        """Return the same strategy."""
        return self

    def with_override(self, override: bytes | None) -> ConstantStrategy:
        """Return the same strategy."""
        return self

    def step(
        self, state: State | None, now_us: int, cost: int, max_wait_us: int = 0
    ) -> tuple[State | None, int]:
        """Grant at once, or refuse however long the caller would wait."""
        return None, max(self._wait_us, max_wait_us + 1) if self._wait_us else 0

    def release(self, state: State, now_us: int, cost: int) -> State:
        """Return the state unchanged."""
        return state

    def settle(self, state: State | None, now_us: int, amount: int, age_us: int) -> State | None:
        """Return ``None``: there is no state to change."""
        return None

    def usage(self, state: State | None, now_us: int) -> LimitUsage:
        """Return the whole capacity, or nothing."""
        return LimitUsage(0 if self._wait_us else self.params.capacity, 0, 0)


def fallback_strategy(
    strategy: Strategy, limit_name: str, fallback: str, outage: Outage, closed_after_us: int = 0
) -> Strategy:
    """Return the strategy by which a worker decides during an outage.

    ``"closed"`` uses the share for the first ``closed_after_us`` of the outage. ``"open"`` applies only to
    failures, not to a server that rejects this worker. A degraded limit is divided at its lowered level. A
    pause does not apply here, because it ends by the clock of the shared store; an ``Upstream`` remembers a
    pause that it knows of.
    """
    strategy = without_expiry(strategy)
    if (fallback == "closed" and not closed_after_us) or (outage.full and fallback == "open"):
        return ConstantStrategy(strategy, CLOSED_RETRY_US)
    if fallback == "open" and not outage.denied:
        return ConstantStrategy(strategy, 0)
    if not isinstance(strategy, RegisteredStrategy):
        raise TypeError(f"strategy must be a RegisteredStrategy, got {strategy!r:.100}")
    closes_us = outage.since_us + closed_after_us if fallback == "closed" else NEVER_US
    return OutageShare(strategy, limit_name, outage, closes_us)
