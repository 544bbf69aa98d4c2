"""The protocol of a database, and SQL statements that are written once for SQLite and PostgreSQL.

A statement is written in the SQL that both databases share, with named parameters (``:key``) and a few macros
for what they do not share:

====================  ==================================  ===============================================
macro                 SQLite                              PostgreSQL
====================  ==================================  ===============================================
``:now``              the machine's clock, once a call    the server's clock, once a transaction
``AT(seconds)``       Unix seconds, as they are           ``timestamptz``
``UNIX(timestamp)``   as it is                            its Unix seconds
``JSON(text)``        as it is                            ``json``
``TEXT(json)``        bytes                               text
``NEW_ID()``          32 random hex digits                a random UUID
``LOCK()``            nothing: a writer locks the file    ``FOR UPDATE``: locks the selected rows in order
``FREE()``            nothing                             ``FOR UPDATE SKIP LOCKED``: skips locked rows
``EACH(texts)``       a table of the texts in a JSON list: column ``item``, and its position ``place``
====================  ==================================  ===============================================

The argument of a macro must not contain brackets. No statement uses the clock of a client process, because
several machines write to one server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Protocol

from comporta.validators import require_number

if TYPE_CHECKING:
    from pathlib import Path

Parameters = Mapping[str, Any]
Rows = list[tuple[Any, ...]]
Execute = Callable[[str], Rows]
"""Run a text in the database's own dialect, inside a transaction that the caller does not end."""
RunStatement = Callable[["Statement", Parameters], Rows]
"""Run a statement inside a transaction that the caller does not end."""

TIMEOUT_SECONDS: Final = 5.0
"""How long a call may take by default; ``?timeout=`` in the URL changes it."""

TIMEOUT_SECONDS_MAX: Final = 3600.0

_MACROS = re.compile(r"\b(AT|UNIX|JSON|TEXT|NEW_ID|LOCK|FREE|EACH)\(([^()]*)\)")
_PARAMETERS = re.compile(r":([a-z_][a-z_0-9]*)")

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
    "UNIX": "date_part('epoch', {})",
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
_NOW_IN_POSTGRESQL = "COALESCE(CAST(%(now)s AS float8), date_part('epoch', now()))"


class Statement:
    """One SQL statement in both dialects."""

    __slots__ = ("postgresql", "sqlite")

    def __init__(self, text: str) -> None:
        self.sqlite = _MACROS.sub(lambda macro: _IN_SQLITE[macro[1]].format(macro[2]), text)
        server = _MACROS.sub(lambda macro: _IN_POSTGRESQL[macro[1]].format(macro[2]), text)
        self.postgresql = _PARAMETERS.sub(_postgresql_parameter, server)


def _postgresql_parameter(name: re.Match[str]) -> str:
    return _NOW_IN_POSTGRESQL if name[1] == "now" else f"%({name[1]})s"


class Database(Protocol):
    """A database. Every call is bounded in time, and raises a ``DatabaseError`` if it fails.

    Parameters may contain ``now`` in Unix seconds, which replaces the database's clock in tests.
    """

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""

    @property
    def address(self) -> str:
        """The URL for messages, without user and password."""

    @property
    def path(self) -> Path | None:
        """The file of the database, which may not exist yet; ``None`` if it is on a server."""

    @property
    def reads_directly(self) -> bool:
        """Whether ``try_read`` ever returns rows."""

    def try_read(self, statement: Statement, parameters: Parameters) -> Rows | None:
        """Return the rows of a short read if that takes microseconds; safe on an event loop.

        Return ``None`` if it would block; then use ``read`` or ``read_async``.
        """

    def read(self, statement: Statement, parameters: Parameters) -> Rows:
        """Return the rows of a statement that changes nothing."""

    async def read_async(self, statement: Statement, parameters: Parameters) -> Rows:
        """Do the same as ``read``, without blocking the event loop."""

    def write(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Run statements in one transaction, and return the rows of each."""

    async def write_async(self, statements: Sequence[Statement], parameters: Parameters) -> list[Rows]:
        """Do the same as ``write``, without blocking the event loop.

        The transaction runs to its end even if the caller is cancelled.
        """

    def statement_transaction(self, seconds: float) -> AbstractContextManager[RunStatement]:
        """Open a write transaction of up to ``seconds``; the end of the block commits it."""

    def transaction(self, seconds: float) -> AbstractContextManager[Execute]:
        """Open an exclusive transaction for migrations, which may take up to ``seconds``."""

    def close(self) -> None:
        """Close all connections; the next call opens new ones."""


def check_timeout(seconds: float) -> float:
    """Return a timeout; raise unless it is 0.001 to 3600 seconds."""
    return require_number("timeout", seconds, 0.001, TIMEOUT_SECONDS_MAX, unit="seconds")
