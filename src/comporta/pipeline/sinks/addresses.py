"""Which row of a sheet belongs to which key: decided once, in the database, before anything is written.

A row that is written again, because an acknowledgement was lost or another process has the same one, goes
where it was. Numbers of one sheet are given out one caller after another: each begins with the record of the
sheet and so waits there for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from comporta.database.base import Database, Statement
from comporta.database.migrations import Migration, check, migrate

FIRST_ROW: Final = 2
"""Below the header."""

_TABLES = (
    """
    CREATE TABLE sheet_headers (
        spreadsheet_id TEXT NOT NULL,
        sheet TEXT NOT NULL,
        columns TEXT NOT NULL,
        last_row INTEGER NOT NULL,
        PRIMARY KEY (spreadsheet_id, sheet)
    )
    """,
    """
    CREATE TABLE sheet_rows (
        spreadsheet_id TEXT NOT NULL,
        sheet TEXT NOT NULL,
        row_key TEXT NOT NULL,
        row_number INTEGER NOT NULL,
        PRIMARY KEY (spreadsheet_id, sheet, row_key)
    )
    """,
)

MIGRATIONS: Final = (Migration(5, "the rows of spreadsheets", _TABLES, _TABLES),)
"""All of them, in order; the numbers before are the cache's."""

_OF_SHEET = "spreadsheet_id = :spreadsheet_id AND sheet = :sheet"

_COLUMNS = Statement(f"SELECT columns FROM sheet_headers WHERE {_OF_SHEET}")

# To set it to what it is locks it.
_ENTER = Statement(
    f"""
    INSERT INTO sheet_headers (spreadsheet_id, sheet, columns, last_row)
    VALUES (:spreadsheet_id, :sheet, :columns, {FIRST_ROW - 1})
    ON CONFLICT (spreadsheet_id, sheet) DO UPDATE SET columns = sheet_headers.columns
    RETURNING columns
    """
)

# A lookup for each key, by the one index there is. As a join, or with another index to choose, PostgreSQL
# goes through the whole table for each of them until somebody has counted its rows.
_ROW_OF = f"(SELECT row_number FROM sheet_rows WHERE {_OF_SHEET} AND row_key = wanted.item)"

_ASSIGN = Statement(
    f"""
    INSERT INTO sheet_rows (spreadsheet_id, sheet, row_key, row_number)
    SELECT CAST(:spreadsheet_id AS TEXT), CAST(:sheet AS TEXT), wanted.item,
        (SELECT last_row FROM sheet_headers WHERE {_OF_SHEET}) + row_number() OVER (ORDER BY wanted.place)
    FROM EACH(:keys) AS wanted WHERE {_ROW_OF} IS NULL
    """
)

_FOUND = f"SELECT wanted.item, {_ROW_OF} AS given_row FROM EACH(:keys) AS wanted"

_COUNT = Statement(
    f"""
    UPDATE sheet_headers SET last_row = given.newest
    FROM (SELECT MAX(given_row) AS newest FROM ({_FOUND}) AS found) AS given
    WHERE {_OF_SHEET} AND last_row < given.newest
    """
)

_FIND = Statement(_FOUND)

_FORGET = tuple(
    Statement(f"DELETE FROM {table} WHERE spreadsheet_id = :spreadsheet_id")
    for table in ("sheet_headers", "sheet_rows")
)


class Assigned(NamedTuple):
    """The columns of a sheet, as whoever came first has set them, and the row of each key."""

    columns: tuple[str, ...]
    rows: dict[str, int]


class Addresses:
    """``sheet_headers`` and ``sheet_rows`` of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def prepare(self, *, may_migrate: bool | None) -> None:
        """Bring the tables up to date, or refuse a database in which they are not; nobody says: a file is."""
        if may_migrate if may_migrate is not None else self.database.dialect == "sqlite":
            migrate(self.database, MIGRATIONS)
        else:
            check(self.database, MIGRATIONS)

    def columns(self, spreadsheet_id: str, sheet: str) -> tuple[str, ...] | None:
        """Return the columns of a sheet; ``None``: nothing was ever written to it from here."""
        import json  # noqa: PLC0415 - whoever imports comporta need not wait for it

        found = self.database.read(_COLUMNS, {"spreadsheet_id": spreadsheet_id, "sheet": sheet})
        return tuple(json.loads(found[0][0])) if found else None

    def assign(
        self, spreadsheet_id: str, sheet: str, columns: Sequence[str], keys: Sequence[str]
    ) -> Assigned:
        """Return the row of each key, new ones below all others, in the order given."""
        import json  # noqa: PLC0415 - see above

        told = {
            "spreadsheet_id": spreadsheet_id,
            "sheet": sheet,
            "columns": json.dumps(list(columns)),
            "keys": json.dumps(list(keys), ensure_ascii=False),
        }
        entered, _, _, found = self.database.write((_ENTER, _ASSIGN, _COUNT, _FIND), told)
        return Assigned(tuple(json.loads(entered[0][0])), dict(found))

    def forget(self, spreadsheet_id: str) -> None:
        """Remove all that is known of a spreadsheet that is gone."""
        self.database.write(_FORGET, {"spreadsheet_id": spreadsheet_id})
