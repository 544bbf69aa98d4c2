"""What a database does, and the words in which it is asked.

A statement is written once, in the SQL that SQLite and PostgreSQL share, with named parameters (``:key``) and
a few words for what they do not share:

==================  ==================================  ===========================================
word                SQLite                              PostgreSQL
==================  ==================================  ===========================================
``:now``            the machine's clock, once a call    the server's, once a transaction
``AT(seconds)``     a moment: a number, as it is        ``timestamptz``
``UNIX(moment)``    as it is                            its Unix seconds
``JSON(text)``      as it is                            ``json``
``TEXT(json)``      bytes                               text
``NEW_ID()``        32 random hex digits                a random UUID
``LOCK()``          nothing: all of it is locked        the rows found are, in their order
``FREE()``          nothing                             those that nobody locked are, others left out
``EACH(texts)``     a table of a JSON list's texts: ``item``, and its ``place`` in the list
==================  ==================================  ===========================================

What stands in their brackets has none of its own. No statement knows a clock of this process: several
machines write to one server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

Parameters = Mapping[str, Any]
Rows = list[tuple[Any, ...]]
Execute = Callable[[str], Rows]
"""Run a text in its own dialect, inside a transaction that somebody else ends."""

TIMEOUT_SECONDS: Final = 5.0
"""How long a call may take, unless the URL says otherwise: ``?timeout=``."""

TIMEOUT_SECONDS_MAX: Final = 3600.0

_WORDS = re.compile(r"\b(AT|UNIX|JSON|TEXT|NEW_ID|LOCK|FREE|EACH)\(([^()]*)\)")
_NAMES = re.compile(r":([a-z_][a-z_0-9]*)")

_IN_SQLITE = {
    "AT": "({})",
    "UNIX": "{}",
    "JSON": "{}",
    "TEXT": "CAST({} AS BLOB)",
    "NEW_ID": "lower(hex(randomblob(16)))",
    "LOCK": "",
    "FREE": "",
    "EACH": "(SELECT value AS item, key AS place FROM json_each({}))",
}
_IN_POSTGRESQL = {
    "AT": "to_timestamp({})",
    "UNIX": "CAST(extract(epoch FROM {}) AS float8)",
    "JSON": "CAST({} AS json)",
    "TEXT": "CAST({} AS text)",
    "NEW_ID": "gen_random_uuid()",
    "LOCK": "FOR UPDATE",
    "FREE": "FOR UPDATE SKIP LOCKED",
    "EACH": (
        "(SELECT item, place FROM json_array_elements_text(CAST({} AS json))"
        " WITH ORDINALITY AS listed (item, place))"
    ),
}
_NOW_IN_POSTGRESQL = "COALESCE(CAST(%(now)s AS float8), CAST(extract(epoch FROM now()) AS float8))"


class Statement:
    """One statement, in both dialects."""

    __slots__ = ("postgresql", "sqlite")

    def __init__(self, text: str) -> None:
        self.sqlite = _WORDS.sub(lambda word: _IN_SQLITE[word[1]].format(word[2]), text)
        server = _WORDS.sub(lambda word: _IN_POSTGRESQL[word[1]].format(word[2]), text)
        self.postgresql = _NAMES.sub(_named, server)


def _named(name: re.Match[str]) -> str:
    return _NOW_IN_POSTGRESQL if name[1] == "now" else f"%({name[1]})s"


class Database(Protocol):
    """A database. Every call is bounded in time; whatever is wrong is one of the errors of ``errors.py``.

    Parameters may hold ``now`` in Unix seconds, for tests that move time by hand.
    """

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""

    @property
    def address(self) -> str:
        """Where it is, for messages: no user, no password."""

    def glance(self, statement: Statement, parameters: Parameters) -> Rows | None:
        """Return what a small read finds if it can be had in microseconds, even on an event loop.

        Nothing if it cannot: then it is to be read as anything else.
        """

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Return what a statement finds that changes nothing."""

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Do the same, on a thread of the database's own."""

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run statements in one transaction, and return what each of them returns."""

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Do the same, on a thread of the database's own."""

    def transaction(self, seconds: float) -> AbstractContextManager[Execute]:
        """Be alone with the database, to change its tables, for so long at the most."""

    def close(self) -> None:
        """Give everything back; it opens anew if it is used again."""


def check_timeout(seconds: float) -> float:
    """Refuse a bound that is none."""
    if not 0.001 <= seconds <= TIMEOUT_SECONDS_MAX:
        raise ValueError(f"timeout must be 0.001 to {TIMEOUT_SECONDS_MAX:g} seconds, got {seconds}")
    return seconds
