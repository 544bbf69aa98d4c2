"""Listing the records of a space on a server, a page at a time.

Local stores look into their tables; a server is asked with SCAN, which never holds it up. What is written
or deleted meanwhile may or may not be in the list. A node of a cluster tells only the keys: it may not read
keys of different slots in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from comporta.stores.base import Part, Script, State
from comporta.stores.lua import lua
from comporta.stores.slots import tagged, untagged

_SPECIAL = frozenset("*?[]\\")


class Page(NamedTuple):
    """Some records, and where to go on: ``b"0"`` is the end."""

    cursor: bytes
    records: dict[str, bytes]


class Keys(NamedTuple):
    """The keys of some records, and where to go on: ``b"0"`` is the end."""

    cursor: bytes
    keys: list[str]


class _Listing:
    """What both have in common. They have no Python twins: they are a server's business only."""

    __slots__ = ("_cursor", "_prefix")

    parts: Sequence[Part] = ()
    followed = False
    fields = 1

    def __init__(self, prefix: str, cursor: bytes) -> None:
        self._prefix = prefix
        self._cursor = cursor

    @staticmethod
    def key_names() -> list[str]:
        """None: what is read is found by its beginning."""
        return []

    def arguments(self) -> list[int | str | bytes]:
        """The pattern and where to start."""
        pattern = "".join(f"\\{char}" if char in _SPECIAL else char for char in self._prefix)
        return [f"{pattern}*".encode("utf-8", "surrogatepass"), self._cursor]

    @staticmethod
    def undo(reply: object) -> None:
        """Nothing was changed."""

    @staticmethod
    def alone(outage: object) -> None:
        """What others wrote cannot be listed without them."""

    def _read(self, raw: Sequence[Any], keys: Sequence[bytes]) -> tuple[bytes, list[str]]:
        if not isinstance(raw[0], bytes):
            raise TypeError("no cursor")
        texts = [key.decode("utf-8", "surrogatepass") for key in keys]
        return raw[0], [text.removeprefix(self._prefix) for text in texts]


class ListRecords(_Listing):
    """Read the next page of a space's records."""

    __slots__ = ()

    script = Script("listing", partial(lua, "stores", "listing"))

    def __init__(self, space: str, cursor: bytes) -> None:
        super().__init__(f"{space}:", cursor)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Page]:
        """Nothing: a local store is listed by itself."""
        return states, Page(b"0", {})

    def parse(self, raw: Sequence[Any]) -> Page:
        """Read cursor, then keys and values by turns."""
        cursor, keys = self._read(raw, raw[1::2])
        return Page(cursor, dict(zip(keys, raw[2::2], strict=True)))


class ListKeys(_Listing):
    """Find the next keys of a space on a node of a cluster."""

    __slots__ = ("_in_space",)

    script = Script("keys", partial(lua, "stores", "keys"))

    def __init__(self, space: str, cursor: bytes) -> None:
        self._in_space = ":" in space  # then the tag is part of the space, not of the keys
        super().__init__(f"{tagged(space)}:", cursor)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Keys]:
        """Nothing: a local store is listed by itself."""
        return states, Keys(b"0", [])

    def parse(self, raw: Sequence[Any]) -> Keys:
        """Read cursor, then keys."""
        cursor, keys = self._read(raw, raw[1:])
        return Keys(cursor, keys if self._in_space else [untagged(key) for key in keys])
