"""Sinks: where a batch writer or a pipeline writes rows.

- ``base.py``: the protocols :class:`Sink` and :class:`AsyncSink`
- ``sqlite.py``, ``csv_file.py``, ``json_lines.py``, ``xlsx.py``: local files
- ``google_sheets.py``: a sheet of Google's, through ``sheets_client.py`` and ``sheet_rows.py``
- ``google_account.py``, ``spreadsheets.py``: credentials and connections, and the creation of spreadsheets
- ``columns.py``, ``sink_file.py``, ``formula_escaping.py``: what several sinks share
"""

from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
from comporta.pipeline.sinks.csv_file import CsvSink
from comporta.pipeline.sinks.google_account import GoogleAccount
from comporta.pipeline.sinks.google_sheets import SheetsSink
from comporta.pipeline.sinks.json_lines import JsonLinesSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet, Spreadsheets
from comporta.pipeline.sinks.sqlite import SqliteSink
from comporta.pipeline.sinks.xlsx import XlsxSink

__all__ = [
    "AsyncSink",
    "CsvSink",
    "GoogleAccount",
    "JsonLinesSink",
    "Row",
    "SheetsSink",
    "Sink",
    "Spreadsheet",
    "Spreadsheets",
    "SqliteSink",
    "XlsxSink",
]
