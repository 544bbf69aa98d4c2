"""Where batches of rows go: a table, a file, a workbook, a spreadsheet of somebody else's."""

from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
from comporta.pipeline.sinks.csv_file import CsvSink
from comporta.pipeline.sinks.google import GoogleAccount
from comporta.pipeline.sinks.sheets import SheetsSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet, Spreadsheets
from comporta.pipeline.sinks.sqlite import SqliteSink
from comporta.pipeline.sinks.xlsx import XlsxSink

__all__ = [
    "AsyncSink",
    "CsvSink",
    "GoogleAccount",
    "Row",
    "SheetsSink",
    "Sink",
    "Spreadsheet",
    "Spreadsheets",
    "SqliteSink",
    "XlsxSink",
]
