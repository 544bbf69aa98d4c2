"""The fleet's journal: the latest entries of all workers, the newest first.

An entry has up to ``ENTRY_BYTES_MAX`` bytes, whose meaning this module does not know. A server keeps the
latest ``ENTRIES_MAX`` entries. Other engines keep a ring of ``PAGES`` records of 4 KB, in which a new page
replaces the oldest: about 200 entries of usual length, and at least 28 of the longest. The journal expires an
hour after its last entry.

Lua version: ``journal.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any, Final

from comporta.clock import SECOND_US
from comporta.names import validate_name
from comporta.stores.base import Operation, R, Script, State, StateKey, key_text
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, VALUE_BYTES_MAX
from comporta.validators import require_integer

SPACE: Final = "comporta_journal"
ENTRIES_MAX: Final = 200
ENTRY_BYTES_MAX: Final = 1000
APPEND_MAX: Final = 50
"""The most entries that one operation appends."""

PAGES: Final = 8
RETENTION_US: Final = 3600 * SECOND_US

_HEAD = Struct("<Q")
_LENGTH = Struct("<H")

Pages = dict[int, bytes]
"""The entries' bytes by page number; numbers only grow, and a number's remainder is its place in the ring."""


class _JournalOperation(Operation[R]):
    """Base of the operations on one journal."""

    __slots__ = ("_journal",)

    script = Script("journal", partial(lua, "stores/journal"))

    def __init__(self, journal: str) -> None:
        self._journal = validate_name(journal)

    @property
    def state_keys(self) -> list[StateKey]:
        """All pages; their numbers say which is the newest."""
        return [StateKey(SPACE, f"{self._journal}:{number}", RECORD) for number in range(PAGES)]

    def script_keys(self) -> list[str]:
        """The key of the journal."""
        return [key_text(SPACE, self._journal)]


class AppendToJournal(_JournalOperation[int]):
    """Append entries, the last one as the newest; returns how many."""

    __slots__ = ("_entries",)

    def __init__(self, journal: str, *entries: bytes) -> None:
        super().__init__(journal)
        if not 1 <= len(entries) <= APPEND_MAX:
            raise ValueError(f"entries must be 1 to {APPEND_MAX}, got {len(entries)}")
        for entry in entries:
            if not 1 <= len(entry) <= ENTRY_BYTES_MAX:
                raise ValueError(f"entry must be 1 to {ENTRY_BYTES_MAX} bytes, got {len(entry)}")
        self._entries = entries

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Append to the newest page, and start the next page when it is full."""
        pages = _parse_pages(states)
        newest = max(pages, default=0)
        written = {newest: pages.get(newest, b"")}
        for entry in self._entries:
            if _HEAD.size + len(written[newest]) + _LENGTH.size + len(entry) > VALUE_BYTES_MAX:
                newest += 1
                written[newest] = b""
            written[newest] += _LENGTH.pack(len(entry)) + entry
        new: list[State | None] = [None] * PAGES
        for number, text in written.items():  # in order: of two pages in one place the newer stays
            new[number % PAGES] = (now_us + RETENTION_US, _HEAD.pack(number) + text)
        return new, len(self._entries)

    def script_args(self) -> list[int | str | bytes]:
        """The command and the entries."""
        return ["append", *self._entries]

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """Read how many entries were appended."""
        [count] = raw
        return int(count)


class ReadJournal(_JournalOperation[list[bytes]]):
    """Return the latest entries, the newest first."""

    __slots__ = ("_count",)

    def __init__(self, journal: str, count: int = ENTRIES_MAX) -> None:
        super().__init__(journal)
        self._count = require_integer("count", count, 1, ENTRIES_MAX)

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], list[bytes]]:
        """Read the pages without changing them."""
        pages = _parse_pages(states)
        entries = [entry for number in sorted(pages, reverse=True) for entry in _page_entries(pages[number])]
        return [None] * PAGES, entries[: self._count]

    def script_args(self) -> list[int | str | bytes]:
        """The command, and how many entries."""
        return ["latest", self._count]

    @staticmethod
    def parse(raw: Sequence[Any]) -> list[bytes]:
        """Read the entries."""
        if not all(isinstance(entry, bytes) for entry in raw):
            raise TypeError("expected a list of bytes")
        return list(raw)


def _parse_pages(states: Sequence[State | None]) -> Pages:
    values = [state[1] for state in states if state is not None]
    return {_HEAD.unpack_from(value)[0]: value[_HEAD.size :] for value in values}


def _page_entries(page: bytes) -> list[bytes]:
    """Return the entries of a page, the newest first."""
    entries: list[bytes] = []
    start = 0
    while start < len(page):
        end = start + _LENGTH.size + _LENGTH.unpack_from(page, start)[0]
        entries.append(page[start + _LENGTH.size : end])
        start = end
    return entries[::-1]
