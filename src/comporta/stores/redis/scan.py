"""Operations that list the records of a space on a server, a page at a time.

They use SCAN, which does not block the server. Records that are written or deleted meanwhile may or may not
be listed. A node of a cluster returns only the keys: a script may not read keys of different slots. Other
engines list their own tables and never apply these operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from comporta.stores.base import Operation, R, Script, State, StateKey
from comporta.stores.lua import lua
from comporta.stores.redis.cluster_slots import add_hash_tag, strip_hash_tag

_SPECIAL = frozenset("*?[]\\")


class RecordPage(NamedTuple):
    """Some records, and the cursor of the next page: ``b"0"`` at the end."""

    cursor: bytes
    records: dict[str, bytes]


class KeyPage(NamedTuple):
    """Some keys, and the cursor of the next page: ``b"0"`` at the end."""

    cursor: bytes
    keys: list[str]


class _ScanOperation(Operation[R]):
    """Base of both scans. Only servers apply them, so ``step`` does nothing."""

    __slots__ = ("_cursor", "_prefix")

    state_keys: Sequence[StateKey] = ()

    def __init__(self, prefix: str, cursor: bytes) -> None:
        self._prefix = prefix
        self._cursor = cursor

    @staticmethod
    def script_keys() -> list[str]:
        """No keys: the script finds them by their prefix."""
        return []

    def script_args(self) -> list[int | str | bytes]:
        """The pattern and the cursor."""
        pattern = "".join(f"\\{char}" if char in _SPECIAL else char for char in self._prefix)
        return [f"{pattern}*".encode("utf-8", "surrogatepass"), self._cursor]

    def _parse_page(self, raw: Sequence[Any], keys: Sequence[bytes]) -> tuple[bytes, list[str]]:
        if not isinstance(raw[0], bytes):
            raise TypeError("expected a cursor")
        texts = [key.decode("utf-8", "surrogatepass") for key in keys]
        return raw[0], [text.removeprefix(self._prefix) for text in texts]


class ScanRecords(_ScanOperation[RecordPage]):
    """Read the next page of a space's records."""

    __slots__ = ()

    script = Script("listing", partial(lua, "stores/redis/scan_records"))

    def __init__(self, space: str, cursor: bytes) -> None:
        super().__init__(f"{space}:", cursor)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], RecordPage]:
        """Do nothing: other engines list their own tables."""
        return states, RecordPage(b"0", {})

    def parse(self, raw: Sequence[Any]) -> RecordPage:
        """Read the cursor, then keys and values in turns."""
        cursor, keys = self._parse_page(raw, raw[1::2])
        return RecordPage(cursor, dict(zip(keys, raw[2::2], strict=True)))


class ScanKeys(_ScanOperation[KeyPage]):
    """Read the next page of a space's keys on a node of a cluster."""

    __slots__ = ("_in_space",)

    script = Script("keys", partial(lua, "stores/redis/scan_keys"))

    def __init__(self, space: str, cursor: bytes) -> None:
        self._in_space = ":" in space  # then the hash tag is in the space, not in the keys
        super().__init__(f"{add_hash_tag(space)}:", cursor)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], KeyPage]:
        """Do nothing: other engines list their own tables."""
        return states, KeyPage(b"0", [])

    def parse(self, raw: Sequence[Any]) -> KeyPage:
        """Read the cursor, then keys."""
        cursor, keys = self._parse_page(raw, raw[1:])
        return KeyPage(cursor, keys if self._in_space else [strip_hash_tag(key) for key in keys])
