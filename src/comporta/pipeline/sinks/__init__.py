"""Sinks: where a batch writer or a pipeline writes rows.

- ``base.py``: the protocols :class:`Sink` and :class:`AsyncSink`
- ``sqlite.py``, ``csv_file.py``, ``json_lines.py``, ``xlsx.py``: local files
- ``postgres.py``: a table of a PostgreSQL server
- ``google_sheets.py``: a sheet in Google Sheets, through ``sheets_client.py`` and ``sheet_rows.py``
- ``google_account.py``, ``spreadsheets.py``: credentials and connections, and the creation of spreadsheets
- ``columns.py``, ``sql_table.py``, ``sink_file.py``, ``formula_escaping.py``: what several sinks share
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comporta.pipeline.sinks.base import (
    AsyncSink,
    ResumableSink,
    ResumePoint,
    Row,
    Sink,
    SinkTransaction,
    TransactionalSink,
)
from comporta.pipeline.sinks.csv_file import CsvSink
from comporta.pipeline.sinks.google_account import GoogleAccount
from comporta.pipeline.sinks.google_sheets import SheetsSink
from comporta.pipeline.sinks.json_lines import JsonLinesSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet, Spreadsheets
from comporta.pipeline.sinks.sqlite import SqliteSink
from comporta.pipeline.sinks.xlsx import XlsxSink

if TYPE_CHECKING:
    from comporta.pipeline.sinks.postgres import PostgresSink

__all__ = [
    "AsyncSink",
    "CsvSink",
    "GoogleAccount",
    "JsonLinesSink",
    "PostgresSink",
    "ResumableSink",
    "ResumePoint",
    "Row",
    "SheetsSink",
    "Sink",
    "SinkTransaction",
    "Spreadsheet",
    "Spreadsheets",
    "SqliteSink",
    "TransactionalSink",
    "XlsxSink",
]


def __getattr__(name: str) -> Any:
    """Import the sink that needs psycopg on first use."""
    if name != "PostgresSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from comporta.pipeline.sinks.postgres import PostgresSink  # noqa: PLC0415 - needs an extra

    return PostgresSink
