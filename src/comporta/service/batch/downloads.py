"""Reads sheets from the database as CSV and XLSX files, in constant memory however many rows they have.

A CSV file is sent page by page. A workbook can only be written as a whole, so it is a temporary file, which
is deleted before it is sent, and is read through its open descriptor. Everything that blocks runs on thread
pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO, Final

from comporta.database.command import execute, execute_async
from comporta.errors import SinkNotFoundError
from comporta.pipeline.sinks.csv_file import encode_csv
from comporta.pipeline.sinks.formula_escaping import Cell, cell
from comporta.pipeline.sinks.xlsx import CELL_CHARS_MAX, write_workbook
from comporta.service.batch.download_queries import DownloadableSheet, SheetLine, find_sheet, read_lines
from comporta.service.batch.models import COLUMNS
from comporta.service.batch.sheets import csv_record
from comporta.thread_pool import ThreadPool

if TYPE_CHECKING:
    from comporta.database.base import Database

CSV, XLSX = "csv", "xlsx"

DOWNLOADS_MAX: Final = {CSV: 100, XLSX: 8}
"""How many downloads of each kind may be in progress in one worker; each workbook is a temporary file."""

PAGE_ROWS: Final = 200
CHUNK_BYTES: Final = 256 * 1024
"""A page of long messages is sent in pieces, so that a slow client keeps little of it in memory."""

_PAGE_THREADS = 4
_WORKBOOK_THREADS = 2
_TRUNCATION_MARK = "…"


class SheetDownloads:
    """The downloads of one worker."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._pages = ThreadPool("downloads", _PAGE_THREADS)
        self._workbooks = ThreadPool("workbooks", _WORKBOOK_THREADS)
        self._in_progress: Counter[str] = Counter()

    async def find(self, download_id: str) -> DownloadableSheet | None:
        """Return the sheet with this id, or ``None``."""
        return await execute_async(self._database, find_sheet(download_id))

    def has_room(self, kind: str) -> bool:
        """Whether another download of this kind may start."""
        return self._in_progress[kind] < DOWNLOADS_MAX[kind]

    def chunks(self, sheet: DownloadableSheet, kind: str) -> AsyncGenerator[bytes, None]:
        """Return the bytes of a file in pieces. Close the generator if you stop early.

        The first piece is empty; it comes when the first page has been read or the workbook is complete.
        While the job still runs, the file has the rows stored so far. If the sheet is deleted meanwhile, the
        generator raises an error: an incomplete file must not look complete.
        """
        return self._csv_chunks(sheet) if kind == CSV else self._xlsx_chunks(sheet)

    def close(self) -> None:
        """End the threads."""
        self._pages.close()
        self._workbooks.close()

    async def _csv_chunks(self, sheet: DownloadableSheet) -> AsyncGenerator[bytes, None]:
        with self._in_slot(CSV):
            page, after = await self._pages.run(self._read_csv_page, sheet, 0)
            yield b""
            yield encode_csv([COLUMNS])
            while after is not None:
                for start in range(0, len(page), CHUNK_BYTES):
                    yield page[start : start + CHUNK_BYTES]
                page, after = await self._pages.run(self._read_csv_page, sheet, after)

    def _read_csv_page(self, sheet: DownloadableSheet, after: int) -> tuple[bytes, int | None]:
        """Return the next page, and the position of its last row, or ``None`` after the last page."""
        lines = self._read_lines(sheet, after)
        return encode_csv(csv_record(*line[1:]) for line in lines), lines[-1].position if lines else None

    async def _xlsx_chunks(self, sheet: DownloadableSheet) -> AsyncGenerator[bytes, None]:
        is_stopped = False
        with self._in_slot(XLSX):
            try:
                file = await self._workbooks.run(self._build_workbook, sheet, lambda: is_stopped)
            except BaseException:
                is_stopped = True
                raise
            with file:
                yield b""
                while chunk := await self._pages.run(file.read, CHUNK_BYTES):
                    yield chunk

    def _build_workbook(self, sheet: DownloadableSheet, should_stop: Callable[[], bool]) -> BinaryIO:
        """Return an open workbook that is no longer in any directory: closing it frees its disk space."""
        with TemporaryDirectory(prefix="comporta-sheet-") as folder:
            path = Path(folder, "sheet.xlsx")
            write_workbook(path, "results", COLUMNS, self._workbook_records(sheet, should_stop))
            file = path.open("rb")
        if should_stop():  # the caller is gone
            file.close()
        return file

    def _workbook_records(
        self, sheet: DownloadableSheet, should_stop: Callable[[], bool]
    ) -> Iterator[tuple[Cell, Cell]]:
        after = 0
        while not should_stop() and (lines := self._read_lines(sheet, after)):
            yield from ((cell(line.account), _fit_cell(line.message)) for line in lines)
            after = lines[-1].position

    def _read_lines(self, sheet: DownloadableSheet, after: int) -> list[SheetLine]:
        """Return the next rows; raise an error if there are none because the sheet was deleted."""
        lines = execute(self._database, read_lines(sheet.job_id, after, PAGE_ROWS))
        if not lines and execute(self._database, find_sheet(sheet.download_id)) is None:
            raise SinkNotFoundError(f"the sheet of job {sheet.job_id} was deleted while a client read it")
        return lines

    @contextmanager
    def _in_slot(self, kind: str) -> Iterator[None]:
        self._in_progress[kind] += 1
        try:
            yield
        finally:
            self._in_progress[kind] -= 1


def _fit_cell(message: str) -> Cell:
    """Return a message that fits into a cell of a workbook; a mark at its end says that it was truncated."""
    if len(message) > CELL_CHARS_MAX:
        message = message[: CELL_CHARS_MAX - len(_TRUNCATION_MARK)] + _TRUNCATION_MARK
    return cell(message)
