"""The budget methods of a limiter: reserve an estimate, and settle what a call really cost.

Each method is a flow, as in ``limits/flows.py``: ``limiter.py`` drives it for coroutines,
``sync_limiter.py`` for threads.
"""

from __future__ import annotations

from functools import partial

from comporta.clock import Clock, to_us
from comporta.flow import Flow
from comporta.limits.block import require_flow
from comporta.limits.budgets.operation import SettleOperation
from comporta.limits.budgets.reservation import Reservation
from comporta.limits.budgets.settlements import Settlement, Settlements
from comporta.limits.flows import Key, LimitFlows
from comporta.limits.key import normalize_key
from comporta.limits.scripts import settle_script
from comporta.limits.strategies.base import EXACT_INT_MAX
from comporta.stores.base import Script
from comporta.stores.effects import Apply
from comporta.validators import require_integer, require_number


class BudgetFlows:
    """The budget of one limit on one store."""

    __slots__ = ("_flows", "_script", "settlements")

    def __init__(self, flows: LimitFlows) -> None:
        self._flows = flows
        self._script = _settle_script(flows)
        self.settlements = Settlements(flows.store, flows.name)

    def settle_flow(self, key: Key, reserved: int, used: int, granted_at: float | None) -> Flow[bool]:
        """Credit or debit the difference between what was reserved for a call and what it cost."""
        settlement = yield from self.settlement_flow(normalize_key(key), reserved, used, granted_at)
        if settlement is None:
            return False
        changed: bool = yield Apply(self._flows.store, settlement.operation)
        settlement.on_settled()
        return changed

    def reserve_flow(self, key: Key, cost: int, timeout: float | None) -> Flow[Reservation]:
        """Take an estimate, waiting up to ``timeout`` seconds, or raise ``LimitReachedError``."""
        flows = self._flows
        yield from require_flow(flows, key, cost, timeout)
        return Reservation(cost, flows.store.clock.now_ns() / 1e9, (flows.name,), (cost,))

    def settle_reservation_flow(self, key: Key, reservation: Reservation) -> Flow[None]:
        """Settle a reservation whose block has ended; if a server decides, together with others."""
        [reserved], [used] = reservation.reserved_amounts, reservation.used_amounts
        settlement = yield from self.settlement_flow(
            normalize_key(key), reserved, used, reservation.granted_at
        )
        if settlement is not None:
            yield from self.settlements.send_soon_flow([settlement])

    def settlement_flow(
        self, text: str, reserved: int, used: int, granted_at: float | None
    ) -> Flow[Settlement | None]:
        """Return the settlement of a call; ``None`` if it cost exactly what was reserved for it."""
        require_integer("reserved", reserved, 0, EXACT_INT_MAX)
        require_integer("used", used, 0, EXACT_INT_MAX)
        clock = self._flows.store.clock
        granted_us = None if granted_at is None else _past_us(granted_at, clock)
        if used == reserved:
            return None
        flows = self._flows.flows_of(text)
        demand = yield from flows.demand_flow(text, used - reserved)
        script = self._script if flows is self._flows else _settle_script(flows)
        operation = SettleOperation(script, demand, granted_us, clock)
        return Settlement(operation, partial(self._wake_waiter, flows, text))

    @staticmethod
    def _wake_waiter(flows: LimitFlows, text: str) -> None:
        """Wake callers of this process to try again, because a credit may have made room."""
        if flows.lease_client is not None:
            flows.lease_client.forget_refusal(text)
        flows.wait_queue.wake_first(text)


def _past_us(granted_at: float, clock: Clock) -> int:
    """Return a moment in the past in µs; raise an error for a time of another clock, such as Unix time."""
    require_number("granted_at", granted_at, unit="seconds of time.monotonic()")
    now = clock.now_ns() / 1e9
    if granted_at > now:
        raise ValueError(
            f"granted_at must be a moment of time.monotonic() in the past, at most {now:.3f}, "
            f"got {granted_at!r}"
        )
    return to_us(granted_at)


def _settle_script(flows: LimitFlows) -> Script:
    return settle_script(flows.config.strategy_name, flows.name, tuple(flows.params))
