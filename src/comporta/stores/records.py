"""Small records that live for a while: workers, leases, probes, operators' changes.

A record is up to 4 KB of bytes under a key, with a time to live or none. It can be written only if
absent, or only if it still holds what was read, so that an owner can be told from its successor.

Twin: ``record.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any

from comporta.clock import to_us
from comporta.stores.base import GONE, KEY_BYTES_MAX, Kind, Part, Script, State, key_text
from comporta.stores.lua import lua

VALUE_BYTES_MAX = 4096
NEVER_US = 2**62
ABSENT = b""
"""As ``expected``: only if there is no record. No record is empty, so this is none's value."""

_HEAD = Struct("<qH")


class _RecordCodec:
    """When it ends, how long it is, and the bytes."""

    size = _HEAD.size + VALUE_BYTES_MAX

    @staticmethod
    def pack_into(buffer: Any, offset: int, /, *state: Any) -> None:
        expires_us, value = state
        _HEAD.pack_into(buffer, offset, expires_us, len(value))
        start = offset + _HEAD.size
        buffer[start : start + len(value)] = value

    @staticmethod
    def unpack_from(buffer: Any, /, offset: int = 0) -> State:
        expires_us, length = _HEAD.unpack_from(buffer, offset)
        start = offset + _HEAD.size
        return expires_us, bytes(buffer[start : start + length])


class _RecordKind:
    """State: when it ends, and the value."""

    codec = _RecordCodec()

    @staticmethod
    def expires_us(state: State) -> int:
        return int(state[0])


RECORD = _RecordKind()


class _RecordOperation:
    """What reading, writing and deleting have in common."""

    __slots__ = ("expected", "followed", "key", "space")

    script = Script("record", partial(lua, "stores", "record"))
    verb = ""
    fields = 1

    def __init__(
        self, space: str, key: str, expected: bytes | None = None, *, followed: bool = False
    ) -> None:
        size = len(key_text(space, key).encode("utf-8", "surrogatepass"))
        if size > KEY_BYTES_MAX:
            raise ValueError(f"key must be at most {KEY_BYTES_MAX} bytes with its space, got {size}")
        self.space = space
        self.key = key
        self.expected = expected
        self.followed = followed

    @property
    def parts(self) -> list[Part]:
        """The one record."""
        return [Part(self.space, self.key, RECORD)]

    def key_names(self) -> list[str]:
        """The one record."""
        return [key_text(self.space, self.key)]

    def arguments(self) -> list[int | str | bytes]:
        """Verb, whether a value is expected, and which."""
        return [self.verb, 0 if self.expected is None else 1, self.expected or ABSENT]

    @staticmethod
    def undo(reply: object) -> None:
        """Records stay as they were written, whoever waits for the answer."""

    @staticmethod
    def alone(outage: object) -> None:
        """A record is there for all to see, or it is nothing."""

    def _met(self, state: State | None, now_us: int) -> bool:
        return self.expected is None or (_value(state, now_us) or ABSENT) == self.expected


def _value(state: State | None, now_us: int) -> bytes | None:
    return None if state is None or state[0] <= now_us else bytes(state[1])


def _said_yes(raw: Sequence[Any]) -> bool:
    return {(0,): False, (1,): True}[tuple(raw)]  # anything else is no answer


class Read(_RecordOperation):
    """Return the value, or ``None``."""

    verb = "read"

    def step(
        self, states: Sequence[State | None], now_us: int
    ) -> tuple[Sequence[State | None], bytes | None]:
        """Look, change nothing."""
        return [None], _value(states[0], now_us)

    @staticmethod
    def parse(raw: Sequence[Any]) -> bytes | None:
        """Return the value as bytes."""
        if not raw:
            return None
        [value] = raw
        if not isinstance(value, bytes):
            raise TypeError("no value")
        return value


class Write(_RecordOperation):
    """Write a value for ``ttl`` seconds (``None``: until deleted) and return whether it was written.

    ``expected``: only if the record still holds this; ``ABSENT``: only if there is none.
    """

    __slots__ = ("ttl_us", "value")

    verb = "write"

    def __init__(
        self,
        space: str,
        key: str,
        value: bytes,
        ttl: float | None,
        expected: bytes | None = None,
        *,
        followed: bool = False,
    ) -> None:
        super().__init__(space, key, expected, followed=followed)
        if not 1 <= len(value) <= VALUE_BYTES_MAX:
            raise ValueError(f"value must be 1 to {VALUE_BYTES_MAX} bytes, got {len(value)}")
        if ttl is not None and not 0.001 <= ttl <= 1e9:
            raise ValueError(f"ttl must be 0.001 to 1e9 seconds, or None, got {ttl}")
        self.value = value
        self.ttl_us = None if ttl is None else to_us(ttl)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        """Write, if the expectation is met."""
        if not self._met(states[0], now_us):
            return [None], False
        ends_us = NEVER_US if self.ttl_us is None else now_us + self.ttl_us
        return [(ends_us, self.value)], True

    def arguments(self) -> list[int | str | bytes]:
        """Add the value and its life in milliseconds (0: for ever)."""
        return [*super().arguments(), self.value, 0 if self.ttl_us is None else self.ttl_us // 1000]

    @staticmethod
    def parse(raw: Sequence[Any]) -> bool:
        """1 is written."""
        return _said_yes(raw)


class Delete(_RecordOperation):
    """Delete whatever is there, a record or a state of another kind, and return whether there was one."""

    __slots__ = ("kind",)

    verb = "delete"

    def __init__(
        self,
        space: str,
        key: str,
        expected: bytes | None = None,
        *,
        followed: bool = False,
        kind: Kind | None = None,
    ) -> None:
        super().__init__(space, key, expected, followed=followed)
        self.kind = kind or RECORD

    @property
    def parts(self) -> list[Part]:
        """The one state."""
        return [Part(self.space, self.key, self.kind)]

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], bool]:
        """Delete, if the expectation is met."""
        if states[0] is None or not self._met(states[0], now_us):
            return [None], False
        return [GONE], True

    @staticmethod
    def parse(raw: Sequence[Any]) -> bool:
        """1 is deleted."""
        return _said_yes(raw)
