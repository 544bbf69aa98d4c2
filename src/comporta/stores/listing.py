"""Listing the records of a space on a server, a page at a time.

Local stores look into their tables; a server is asked with SCAN, which never holds it up. What is written
or deleted meanwhile may or may not be in the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from comporta.stores.base import Part, Script, State

_SPECIAL = frozenset("*?[]\\")


class Page(NamedTuple):
    """Some records, and where to go on: ``b"0"`` is the end."""

    cursor: bytes
    records: dict[str, bytes]


@cache
def _script_text() -> str:
    from importlib.resources import files  # noqa: PLC0415 - see limits/operation.py

    return files("comporta.stores").joinpath("listing.lua").read_text("utf-8")


class ListRecords:
    """Read the next page. It has no Python twin: it is a server's business only."""

    __slots__ = ("_cursor", "_prefix")

    script = Script("listing", _script_text)
    parts: Sequence[Part] = ()
    followed = False
    fields = 1

    def __init__(self, space: str, cursor: bytes) -> None:
        self._prefix = f"{space}:"
        self._cursor = cursor

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], Page]:
        """Nothing: a local store is listed by itself."""
        return states, Page(b"0", {})

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

    def parse(self, raw: Sequence[Any]) -> Page:
        """Read cursor, then keys and values by turns."""
        if not isinstance(raw[0], bytes):
            raise TypeError("no cursor")
        texts = (key.decode("utf-8", "surrogatepass").removeprefix(self._prefix) for key in raw[1::2])
        return Page(raw[0], dict(zip(texts, raw[2::2], strict=True)))
