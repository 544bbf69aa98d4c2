"""Small records with an optional time to live, as operations: read, write, delete.

A record is up to 4 KB of bytes under a key. A write can require that the record is absent, or that it still
holds the value that was read, so that a late owner cannot overwrite its successor's record. Registries, the
journal, histories and operators' overrides are records.

This module does not know what the bytes mean. Lua versions: ``record.lua`` and ``read_records.lua``.
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
from comporta.stores.lua import lua, script_error

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


_CHANGE_SCRIPT = Script("record", partial(lua, "stores/record"))
_NOTED_CHANGE_SCRIPT = Script("noted record", partial(lua, "stores/record"), notes_changes=True)
_READ_SCRIPT = Script("read records", partial(lua, "stores/read_records"), batchable=True)


class _RecordOperation(Operation[R]):
    """Base of the operations on one record."""

    __slots__ = ("key", "space")

    def __init__(self, space: str, key: str) -> None:
        size = len(key_text(space, key).encode("utf-8", "surrogatepass"))
        if size > KEY_BYTES_MAX:
            raise ValueError(f"key must be at most {KEY_BYTES_MAX} bytes with its space, got {size}")
        self.space = space
        self.key = key

    @property
    def state_keys(self) -> list[StateKey]:
        """The record."""
        return [StateKey(self.space, self.key, RECORD)]


class ReadRecord(_RecordOperation[bytes | None]):
    """Return the value of a record, or ``None`` if there is none. Many reads take one call of a server."""

    __slots__ = ()

    script = _READ_SCRIPT
    is_read = True

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], bytes | None]:
        """Read the record without changing it."""
        return [None], _value(states[0], now_us)

    def script_args(self) -> list[int | str | bytes]:
        """Return no arguments: the key is enough."""
        return []

    def parse(self, raw: Sequence[Any]) -> bytes | None:
        """Read the value; a list holds the error of an unusable key."""
        [value] = raw
        if isinstance(value, list):
            raise script_error(value[0], key_text(self.space, self.key))
        if value is not None and not isinstance(value, bytes):
            raise TypeError("expected bytes")
        return value


class _RecordChange(_RecordOperation[bool]):
    """Base of the operations that change a record if it holds the expected value.

    ``changes_override`` is true if bound limits of this process follow the record. ``change_name`` is the
    name under which the change log records the change.
    """

    __slots__ = ("_change_name", "changes_override", "expected", "script")

    script: Script
    command = ""

    def __init__(
        self,
        space: str,
        key: str,
        expected: bytes | None = None,
        *,
        changes_override: bool = False,
        change_name: str | None = None,
    ) -> None:
        super().__init__(space, key)
        self.expected = expected
        self.changes_override = changes_override
        self._change_name = change_name
        self.script = _CHANGE_SCRIPT if change_name is None else _NOTED_CHANGE_SCRIPT

    def script_args(self) -> list[int | str | bytes]:
        """The command, whether a value is expected, that value, and the name for the change log."""
        expects = 0 if self.expected is None else 1
        return [self.command, expects, self.expected or ABSENT, self._change_name or ""]

    def changed_name(self, reply: bool) -> str | None:
        """Return the name for the change log if the record changed."""
        return self._change_name if reply else None

    def _matches_expected(self, state: State | None, now_us: int) -> bool:
        return self.expected is None or (_value(state, now_us) or ABSENT) == self.expected

    @staticmethod
    def parse(raw: Sequence[Any]) -> bool:
        """Read 1 for changed, 0 for not."""
        return {(0,): False, (1,): True}[tuple(raw)]  # any other reply is malformed


def _value(state: State | None, now_us: int) -> bytes | None:
    return None if state is None or state[0] <= now_us else bytes(state[1])


class WriteRecord(_RecordChange):
    """Write a value for ``ttl`` seconds (``None``: until deleted) and return whether it was written.

    With ``expected``, write only if the record still holds this value; with ``ABSENT``, only if there is no
    record.
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
        change_name: str | None = None,
    ) -> None:
        super().__init__(space, key, expected, changes_override=changes_override, change_name=change_name)
        if not 1 <= len(value) <= VALUE_BYTES_MAX:
            raise ValueError(f"value must be 1 to {VALUE_BYTES_MAX} bytes, got {len(value)}")
        if ttl is not None and not 0.001 <= ttl <= 1e9:
            raise ValueError(f"ttl must be 0.001 to 1e9 seconds, or None, got {ttl}")
        self.value = value
        self.ttl_us = None if ttl is None else to_us(ttl)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        """Write the value if the record holds the expected one."""
        if not self._matches_expected(states[0], now_us):
            return [None], False
        expires_us = NEVER_US if self.ttl_us is None else now_us + self.ttl_us
        return [(expires_us, self.value)], True

    def script_args(self) -> list[int | str | bytes]:
        """Add the value and its time to live in milliseconds (0: none)."""
        return [*super().script_args(), self.value, 0 if self.ttl_us is None else self.ttl_us // 1000]


class DeleteRecord(_RecordChange):
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
        change_name: str | None = None,
        state_type: StateType | None = None,
    ) -> None:
        super().__init__(space, key, expected, changes_override=changes_override, change_name=change_name)
        self.state_type = state_type or RECORD

    @property
    def state_keys(self) -> list[StateKey]:
        """The state."""
        return [StateKey(self.space, self.key, self.state_type)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        """Delete the state if it matches the expected one."""
        if states[0] is None or not self._matches_expected(states[0], now_us):
            return [None], False
        return [GONE], True
