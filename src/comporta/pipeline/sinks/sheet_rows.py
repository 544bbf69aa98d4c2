"""Which row of a sheet belongs to which key: assigned once, in the database, before a row is written.

A row that is written again, because an acknowledgement was lost or another process has the same row, goes to
the same place. Callers get row numbers of a sheet one after another: each first locks the record of the
sheet, and waits there for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from comporta.database.base import Database, Statement
from comporta.database.migrations import Migration, check_applied, migrate

FIRST_ROW: Final = 2
"""The first row below the header."""

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

MIGRATIONS: Final = (Migration(50, "the rows of spreadsheets", _TABLES, _TABLES),)
"""All migrations, in order; the numbers below 50 belong to the cache."""

_OF_SHEET = "spreadsheet_id = :spreadsheet_id AND sheet = :sheet"

_COLUMNS = Statement(f"SELECT columns FROM sheet_headers WHERE {_OF_SHEET}")

# Setting a column to its own value locks the row.
_LOCK_HEADER = Statement(
    f"""
    INSERT INTO sheet_headers (spreadsheet_id, sheet, columns, last_row)
    VALUES (:spreadsheet_id, :sheet, :columns, {FIRST_ROW - 1})
    ON CONFLICT (spreadsheet_id, sheet) DO UPDATE SET columns = sheet_headers.columns
    RETURNING columns
    """
)

# One lookup per key, by the only index. For a join, or with a second index, PostgreSQL scans the whole table
# for each key until the table has been analyzed.
_ROW_OF = f"(SELECT row_number FROM sheet_rows WHERE {_OF_SHEET} AND row_key = wanted.item)"

_ASSIGN = Statement(
    f"""
    INSERT INTO sheet_rows (spreadsheet_id, sheet, row_key, row_number)
    SELECT CAST(:spreadsheet_id AS TEXT), CAST(:sheet AS TEXT), wanted.item,
        (SELECT last_row FROM sheet_headers WHERE {_OF_SHEET}) + row_number() OVER (ORDER BY wanted.place)
    FROM EACH(:keys) AS wanted WHERE {_ROW_OF} IS NULL
    """
)

_ROWS_OF_KEYS = f"SELECT wanted.item, {_ROW_OF} AS given_row FROM EACH(:keys) AS wanted"

_UPDATE_LAST_ROW = Statement(
    f"""
    UPDATE sheet_headers SET last_row = given.newest
    FROM (SELECT MAX(given_row) AS newest FROM ({_ROWS_OF_KEYS}) AS found) AS given
    WHERE {_OF_SHEET} AND last_row < given.newest
    """
)

_SELECT_ROWS = Statement(_ROWS_OF_KEYS)

_DELETE = tuple(
    Statement(f"DELETE FROM {table} WHERE spreadsheet_id = :spreadsheet_id")
    for table in ("sheet_headers", "sheet_rows")
)


class RowAssignment(NamedTuple):
    """The columns of a sheet, as its first writer set them, and the row of each key."""

    columns: tuple[str, ...]
    rows: dict[str, int]


class SheetRows:
    """The tables ``sheet_headers`` and ``sheet_rows`` of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def prepare(self, *, may_migrate: bool | None) -> None:
        """Migrate the tables, or raise if they are outdated; ``None`` migrates SQLite files only."""
        if may_migrate if may_migrate is not None else self.database.dialect == "sqlite":
            migrate(self.database, MIGRATIONS)
        else:
            check_applied(self.database, MIGRATIONS)

    def columns(self, spreadsheet_id: str, sheet: str) -> tuple[str, ...] | None:
        """Return the columns of a sheet; ``None`` if no row was written through this database."""
        import json  # noqa: PLC0415 - imported only by programs that write sheets

        rows = self.database.read(_COLUMNS, {"spreadsheet_id": spreadsheet_id, "sheet": sheet})
        return tuple(json.loads(rows[0][0])) if rows else None

    def assign(
        self, spreadsheet_id: str, sheet: str, columns: Sequence[str], keys: Sequence[str]
    ) -> RowAssignment:
        """Return the row of each key; new keys get rows below all others, in the given order."""
        import json  # noqa: PLC0415 - imported only by programs that write sheets

        parameters = {
            "spreadsheet_id": spreadsheet_id,
            "sheet": sheet,
            "columns": json.dumps(list(columns)),
            "keys": json.dumps(list(keys), ensure_ascii=False),
        }
        header, _, _, rows = self.database.write(
            (_LOCK_HEADER, _ASSIGN, _UPDATE_LAST_ROW, _SELECT_ROWS), parameters
        )
        return RowAssignment(tuple(json.loads(header[0][0])), dict(rows))

    def delete(self, spreadsheet_id: str) -> None:
        """Delete all rows of a spreadsheet."""
        self.database.write(_DELETE, {"spreadsheet_id": spreadsheet_id})
