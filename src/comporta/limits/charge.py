"""Charging a limit with what a worker granted elsewhere, whether or not the amount is available.

After an outage each worker uses this operation to report what it granted from its local share. Each report
has a number, and the store keeps the last number that it applied for each worker and limit, so a report that
is sent again because its reply was lost is not charged twice.

Lua version: ``charge.lua``, below the Lua text of the strategy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.clock import SECOND_US
from comporta.limits.reply import unusable_key_error
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE, REPORT_SPACE, charge_script
from comporta.limits.strategies.base import CHARGE, Strategy
from comporta.stores.base import Operation, Script, State, StateKey, key_text
from comporta.stores.records import RECORD

MARKER_TTL_US = 3600 * SECOND_US
"""How long a store remembers the last report of a worker: longer than the network can delay one."""


class ChargeOperation(Operation[bool]):
    """Charge one limit with an amount; returns whether it was charged now. The debt is bounded (``CHARGE``).

    Charges of one ``reporter`` have increasing numbers; a charge whose number was already applied has no
    effect. A charge with ``number`` 0 is applied each time.
    """

    __slots__ = ("_number", "_reporter", "_strategy", "amount", "key", "name")

    def __init__(
        self, strategy: Strategy, name: str, key: str, amount: int, *, reporter: str = "", number: int = 0
    ) -> None:
        self._strategy = strategy
        self._reporter = reporter
        self._number = number
        self.name = name
        self.key = key
        self.amount = amount

    def as_report(self, reporter: str, number: int) -> ChargeOperation:
        """Return the same charge as a numbered report, which takes effect only once."""
        return ChargeOperation(
            self._strategy, self.name, self.key, self.amount, reporter=reporter, number=number
        )

    @property
    def script(self) -> Script:
        """The script of charges for this strategy."""
        return charge_script(self._strategy.name)

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key, and the marker of the reporter."""
        return [
            StateKey(f"{LIMIT_SPACE}:{self.name}", self.key, self._strategy),
            StateKey(REPORT_SPACE, f"{self.name}:{self._reporter}", RECORD),
        ]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], bool]:
        """Take the amount, unless this report was applied before."""
        state, marker = states
        if self._number and marker is not None and int(marker[1]) >= self._number:
            return [None, None], False
        new, _ = self._strategy.step(state, now_us, self.amount, CHARGE)
        return [new, (now_us + MARKER_TTL_US, b"%d" % self._number) if self._number else None], True

    def script_keys(self) -> list[str]:
        """Return the state, the override record and the marker."""
        state, marker = (key_text(key.space, key.key) for key in self.state_keys)
        return [state, key_text(OVERRIDE_SPACE, self.name), marker]

    def script_args(self) -> list[int | str | bytes]:
        """Return the number, the amount, the parameters of the limit, and how long to keep the marker."""
        return [self._number, self.amount, *self._strategy.params, MARKER_TTL_US // 1000]

    def parse(self, raw: Sequence[Any]) -> bool:
        """Parse the reply, or raise the error that the script returned for one of the keys."""
        if isinstance(raw[0], int):
            return raw[0] == 1
        raise unusable_key_error(self.name, self.key, raw[0])
