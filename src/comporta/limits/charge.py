"""Charging a limit with what a worker granted elsewhere, whether it is available or not.

After an outage each worker reports this way what it granted from its local share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from comporta.limits.reply import REPLY_SIZE, LimitReply, build_reply, parse_reply
from comporta.limits.scripts import LIMIT_SPACE, OVERRIDE_SPACE, limit_script
from comporta.limits.strategies.base import CHARGE, Strategy
from comporta.stores.base import Operation, Script, State, StateKey, key_text


class ChargeOperation(Operation[LimitReply]):
    """Charge one limit with an amount; the debt is bounded (see ``CHARGE``)."""

    __slots__ = ("_strategy", "amount", "key", "name")

    def __init__(self, strategy: Strategy, name: str, key: str, amount: int) -> None:
        self._strategy = strategy
        self.name = name
        self.key = key
        self.amount = amount

    @property
    def script(self) -> Script:
        """The script of a single limit."""
        return limit_script(self._strategy.name)

    @property
    def reply_size(self) -> int:
        """The fields of one reply."""
        return REPLY_SIZE

    @property
    def state_keys(self) -> list[StateKey]:
        """The state of the key."""
        return [StateKey(f"{LIMIT_SPACE}:{self.name}", self.key, self._strategy)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[list[State | None], LimitReply]:
        """Take the amount."""
        new, wait_us = self._strategy.step(states[0], now_us, self.amount, CHARGE)
        return [new], build_reply(self._strategy, new or states[0], now_us, wait_us, 0)

    def script_keys(self) -> list[str]:
        """Return the state and the override record."""
        return [key_text(f"{LIMIT_SPACE}:{self.name}", self.key), key_text(OVERRIDE_SPACE, self.name)]

    def script_args(self) -> list[int | str | bytes]:
        """Return one group of one limit."""
        return [1, self._strategy.name, self.amount, CHARGE, *self._strategy.params, 0]

    def parse(self, raw: Sequence[Any]) -> LimitReply:
        """Parse the reply."""
        return parse_reply(self.name, self.key, raw)
