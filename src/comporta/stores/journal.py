"""The latest notes of a fleet, the newest first: what happened, told by all workers in one place.

A note is up to ``ENTRY_BYTES_MAX`` bytes and means nothing here. On a server the latest ``ENTRIES_MAX`` are
kept. In memory and on this machine they are in a ring of ``PAGES`` records of 4 KB, of which the oldest makes
room for the next: some 200 notes of usual length, and no less than 28 of the longest. The journal is
forgotten an hour after its last note.

Twin: ``journal.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from struct import Struct
from typing import Any, Final

from comporta.clock import SECOND_US
from comporta.names import checked_name
from comporta.stores.base import Part, Script, State, key_text
from comporta.stores.lua import lua
from comporta.stores.records import RECORD, VALUE_BYTES_MAX

SPACE: Final = "comporta_journal"
ENTRIES_MAX: Final = 200
ENTRY_BYTES_MAX: Final = 1000
NOTED_AT_ONCE: Final = 50
"""How many notes one operation makes at the most."""

PAGES: Final = 8
KEPT_US: Final = 3600 * SECOND_US

_HEAD = Struct("<Q")
_LENGTH = Struct("<H")

Pages = dict[int, bytes]
"""What was noted, by the number of the page: numbers go up, and their place in the ring is known by them."""


class _JournalOperation:
    """What noting and reading have in common: the journal."""

    __slots__ = ("_journal",)

    script = Script("journal", partial(lua, "stores", "journal"))
    followed = False
    fields = 1

    def __init__(self, journal: str) -> None:
        self._journal = checked_name(journal)

    @property
    def parts(self) -> list[Part]:
        """All pages: which of them is the newest, they tell."""
        return [Part(SPACE, f"{self._journal}:{number}", RECORD) for number in range(PAGES)]

    def key_names(self) -> list[str]:
        """The journal."""
        return [key_text(SPACE, self._journal)]

    @staticmethod
    def undo(reply: object) -> None:
        """What was noted has happened, whoever waits for the answer."""

    @staticmethod
    def alone(outage: object) -> None:
        """A journal is everybody's, or it is none."""


class Note(_JournalOperation):
    """Note something, the last of it as the newest; returns how many notes were made."""

    __slots__ = ("_entries",)

    def __init__(self, journal: str, *entries: bytes) -> None:
        super().__init__(journal)
        if not 1 <= len(entries) <= NOTED_AT_ONCE:
            raise ValueError(f"entries must be 1 to {NOTED_AT_ONCE}, got {len(entries)}")
        for entry in entries:
            if not 1 <= len(entry) <= ENTRY_BYTES_MAX:
                raise ValueError(f"entry must be 1 to {ENTRY_BYTES_MAX} bytes, got {len(entry)}")
        self._entries = entries

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], int]:
        """Write on, and turn the page where it is full."""
        pages = _read(states)
        newest = max(pages, default=0)
        written = {newest: pages.get(newest, b"")}
        for entry in self._entries:
            if _HEAD.size + len(written[newest]) + _LENGTH.size + len(entry) > VALUE_BYTES_MAX:
                newest += 1
                written[newest] = b""
            written[newest] += _LENGTH.pack(len(entry)) + entry
        new: list[State | None] = [None] * PAGES
        for number, text in written.items():  # in order: the newest stays where two have one place
            new[number % PAGES] = (now_us + KEPT_US, _HEAD.pack(number) + text)
        return new, len(self._entries)

    def arguments(self) -> list[int | str | bytes]:
        """Verb and notes."""
        return ["note", *self._entries]

    @staticmethod
    def parse(raw: Sequence[Any]) -> int:
        """One number."""
        [count] = raw
        return int(count)


class Latest(_JournalOperation):
    """Return the latest notes, the newest first."""

    __slots__ = ("_count",)

    def __init__(self, journal: str, count: int = ENTRIES_MAX) -> None:
        super().__init__(journal)
        if not 1 <= count <= ENTRIES_MAX:
            raise ValueError(f"count must be 1 to {ENTRIES_MAX}, got {count}")
        self._count = count

    def step(self, states: Sequence[State | None], now_us: int) -> tuple[Sequence[State | None], list[bytes]]:
        """Look, change nothing."""
        pages = _read(states)
        found = [entry for number in sorted(pages, reverse=True) for entry in _entries(pages[number])]
        return [None] * PAGES, found[: self._count]

    def arguments(self) -> list[int | str | bytes]:
        """Verb, and how many."""
        return ["latest", self._count]

    @staticmethod
    def parse(raw: Sequence[Any]) -> list[bytes]:
        """Notes."""
        if not all(isinstance(entry, bytes) for entry in raw):
            raise TypeError("no notes")
        return list(raw)


def _read(states: Sequence[State | None]) -> Pages:
    values = [state[1] for state in states if state is not None]
    return {_HEAD.unpack_from(value)[0]: value[_HEAD.size :] for value in values}


def _entries(page: bytes) -> list[bytes]:
    """Return the notes of a page, the newest first."""
    found: list[bytes] = []
    start = 0
    while start < len(page):
        end = start + _LENGTH.size + _LENGTH.unpack_from(page, start)[0]
        found.append(page[start + _LENGTH.size : end])
        start = end
    return found[::-1]
