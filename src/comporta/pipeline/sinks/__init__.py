"""Where batches of rows go: a table, a file, a workbook, a spreadsheet of somebody else's."""

from comporta.pipeline.sinks.base import AsyncSink, Row, Sink

__all__ = ["AsyncSink", "Row", "Sink"]
