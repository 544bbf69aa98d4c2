"""Small records with an optional time to live, as operations: read, write, delete.

A record is up to 4 KB of bytes under a key. A write can require that the record is absent, or that it still
holds the value that was read, so that a late owner cannot overwrite its successor's record. Registries, the
journal, histories and operators' overrides are records.

This module does not know what the bytes mean. Lua twin: ``record.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any

from comporta.clock import to_us
from comporta.stores.base import (
    GONE,
    KEY_BYTES_MAX,
    Operation,
    R,
    Script,
    State,
    StateKey,
    StateType,
    key_text,
)
from comporta.stores.lua import lua

VALUE_BYTES_MAX = 4096
NEVER_US = 2**62
ABSENT = b""
"""As ``expected``: only if there is no record. No record has this value, because none is empty."""

_HEAD = Struct("<qH")


class _RecordCodec:
    """Layout of a record: when it expires, its length, and the bytes."""

    size = _HEAD.size + VALUE_BYTES_MAX

    @staticmethod
    def pack(*state: Any) -> bytes:
        expires_us, value = state
        return _HEAD.pack(expires_us, len(value)) + bytes(value)

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        expires_us, length = _HEAD.unpack_from(buffer, offset)
        start = offset + _HEAD.size
        return expires_us, bytes(buffer[start : start + length])


class _RecordType(StateType):
    """A record as a state: when it expires, and its value."""

    listed = True
    codec = _RecordCodec()

    @staticmethod
    def expires_us(state: State) -> int:
        return int(state[0])


RECORD = _RecordType()


class _RecordOperation(Operation[R]):
    """Base of the operations on one record."""

    __slots__ = ("changes_override", "expected", "key", "space")

    script = Script("record", partial(lua, "stores/record"))
    command = ""

    def __init__(
        self, space: str, key: str, expected: bytes | None = None, *, changes_override: bool = False
    ) -> None:
        size = len(key_text(space, key).encode("utf-8", "surrogatepass"))
        if size > KEY_BYTES_MAX:
            raise ValueError(f"key must be at most {KEY_BYTES_MAX} bytes with its space, got {size}")
        self.space = space
        self.key = key
        self.expected = expected
        self.changes_override = changes_override

    @property
    def state_keys(self) -> list[StateKey]:
        """The record."""
        return [StateKey(self.space, self.key, RECORD)]

    def script_args(self) -> list[int | str | bytes]:
        """The command, whether a value is expected, and that value."""
        return [self.command, 0 if self.expected is None else 1, self.expected or ABSENT]

    def _matches_expected(self, state: State | None, now_us: int) -> bool:
        return self.expected is None or (_value(state, now_us) or ABSENT) == self.expected


def _value(state: State | None, now_us: int) -> bytes | None:
    return None if state is None or state[0] <= now_us else bytes(state[1])


def _parse_flag(raw: Sequence[Any]) -> bool:
    return {(0,): False, (1,): True}[tuple(raw)]  # any other reply is malformed


class ReadRecord(_RecordOperation[bytes | None]):
    """Return the value of a record, or ``None`` if there is none."""

    command = "read"

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], bytes | None]:
        """Read the record without changing it."""
        return [None], _value(states[0], now_us)

    @staticmethod
    def parse(raw: Sequence[Any]) -> bytes | None:
        """Read the value."""
        if not raw:
            return None
        [value] = raw
        if not isinstance(value, bytes):
            raise TypeError("expected bytes")
        return value


class WriteRecord(_RecordOperation[bool]):
    """Write a value for ``ttl`` seconds (``None``: until deleted) and return whether it was written.

    ``expected``: write only if the record still holds this value; ``ABSENT``: only if there is no record.
    """

    __slots__ = ("ttl_us", "value")

    command = "write"

    def __init__(
        self,
        space: str,
        key: str,
        value: bytes,
        ttl: float | None,
        expected: bytes | None = None,
        *,
        changes_override: bool = False,
    ) -> None:
        super().__init__(space, key, expected, changes_override=changes_override)
        if not 1 <= len(value) <= VALUE_BYTES_MAX:
            raise ValueError(f"value must be 1 to {VALUE_BYTES_MAX} bytes, got {len(value)}")
        if ttl is not None and not 0.001 <= ttl <= 1e9:
            raise ValueError(f"ttl must be 0.001 to 1e9 seconds, or None, got {ttl}")
        self.value = value
        self.ttl_us = None if ttl is None else to_us(ttl)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        """Write the value if the record holds what is expected."""
        if not self._matches_expected(states[0], now_us):
            return [None], False
        expires_us = NEVER_US if self.ttl_us is None else now_us + self.ttl_us
        return [(expires_us, self.value)], True

    def script_args(self) -> list[int | str | bytes]:
        """Add the value and its time to live in milliseconds (0: none)."""
        return [*super().script_args(), self.value, 0 if self.ttl_us is None else self.ttl_us // 1000]

    @staticmethod
    def parse(raw: Sequence[Any]) -> bool:
        """Read 1 for written, 0 for not."""
        return _parse_flag(raw)


class DeleteRecord(_RecordOperation[bool]):
    """Delete a record, or a state of another type, and return whether there was one."""

    __slots__ = ("state_type",)

    command = "delete"

    def __init__(
        self,
        space: str,
        key: str,
        expected: bytes | None = None,
        *,
        changes_override: bool = False,
        state_type: StateType | None = None,
    ) -> None:
        super().__init__(space, key, expected, changes_override=changes_override)
        self.state_type = state_type or RECORD

    @property
    def state_keys(self) -> list[StateKey]:
        """The state."""
        return [StateKey(self.space, self.key, self.state_type)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        """Delete the state if it is what is expected."""
        if states[0] is None or not self._matches_expected(states[0], now_us):
            return [None], False
        return [GONE], True

    @staticmethod
    def parse(raw: Sequence[Any]) -> bool:
        """Read 1 for deleted, 0 for not."""
        return _parse_flag(raw)
