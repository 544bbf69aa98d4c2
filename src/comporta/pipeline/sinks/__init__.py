"""Where batches of rows go: a table, a file, a workbook, a spreadsheet of somebody else's."""

from comporta.pipeline.sinks.base import AsyncSink, Row, Sink
from comporta.pipeline.sinks.google import GoogleAccount
from comporta.pipeline.sinks.sheets import SheetsSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet, Spreadsheets

__all__ = ["AsyncSink", "GoogleAccount", "Row", "SheetsSink", "Sink", "Spreadsheet", "Spreadsheets"]
