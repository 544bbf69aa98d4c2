"""Sheets as CSV files in a directory of one machine, readable while they grow.

Unlike Google Sheets, a file has no row addresses to overwrite. A writer therefore locks the file against
other processes, reads what other writers appended since, and skips rows whose account the file already has.
It reads no part of the file twice, so a write costs the same however long the file is.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from comporta.errors import SinkBusyError, SinkNotFoundError, SinkUnavailableError
from comporta.pipeline.files.torn_tail import complete_records_size, write_all
from comporta.pipeline.sinks.base import Row, Sink
from comporta.pipeline.sinks.csv_file import CsvSink, encode_csv
from comporta.pipeline.sinks.spreadsheets import Spreadsheet
from comporta.pipeline.writer.delivery import WriteLimiter
from comporta.retry.retry import Retry
from comporta.service.batch.models import COLUMNS
from comporta.service.batch.sheets import csv_record, sheet_retry

LOCK_TIMEOUT_SECONDS: Final = 10.0
NAME_BYTES_MAX: Final = 160
"""A file name has at most 255 bytes, and the id and the lock's name need some of them."""

_LOCK_POLL_SECONDS = 0.01
_ID = re.compile(r"[0-9a-f]{24}")
_UNSAFE_CHARS = re.compile(r"[^\w .()-]+")


class LocalSheets:
    """Spreadsheets in a directory, which is created with the first one.

    They have no URL: a path means nothing to clients, and the service serves them the same rows.
    """

    stores_rows = True
    quota: WriteLimiter | None = None

    def __init__(self, directory: str | os.PathLike[str], retry: Retry | None = None) -> None:
        self.directory = Path(directory)
        self.retry = retry or sheet_retry(retries=3, base=0.2)

    def open(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Return the file for ``marker``; create it unless it already exists, under any name."""
        sheet_id = hashlib.sha256(marker.encode()).hexdigest()[:24]
        stem = _truncate(" ".join(_UNSAFE_CHARS.sub(" ", name).split())).strip(" .") or "sheet"
        with _sink_errors(self.directory):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _exclusive_lock(self.directory / ".lock"):
            path = self._find(sheet_id) or self.directory / f"{stem}-{sheet_id}.csv"
            sink = CsvSink(path, COLUMNS)
            sink.open()
            sink.close()
        return Spreadsheet(sheet_id, "", name)

    def exists(self, spreadsheet_id: str) -> bool:
        """Return whether the file exists."""
        return self._find(spreadsheet_id) is not None

    def sink(self, spreadsheet_id: str) -> Sink:
        """Return a sink that writes to the file."""
        path = self._find(spreadsheet_id)
        if path is None:
            raise SinkNotFoundError(f"no sheet {spreadsheet_id!r:.50} in {self.directory}")
        return LocalSheet(path)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _find(self, sheet_id: str) -> Path | None:
        if _ID.fullmatch(sheet_id) is None:
            return None
        return next(self.directory.glob(f"*-{sheet_id}.csv"), None)


class LocalSheet:
    """A CSV file that several processes append to, each account once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path.with_name(f".{path.name}.lock")
        self._inode: tuple[int, int] | None = None
        self._size = 0
        """How many bytes of the file are rows whose accounts are known."""

        self._accounts: set[str] = set()

    def open(self) -> None:
        """Check that the file exists."""
        if not self.path.exists():
            raise SinkNotFoundError(f"sheet file was removed: {self.path}")

    def write(self, rows: Sequence[Row]) -> None:
        """Append the rows whose account the file does not have yet."""
        with _exclusive_lock(self._lock_path), _sink_errors(self.path):
            self.open()
            self._check_replaced()
            with self._open_file() as descriptor:
                self._read_new_accounts(descriptor)
                records = (csv_record(*(str(row[column]) for column in COLUMNS)) for row in rows)
                new = {
                    account: record for record in records if (account := str(record[0])) not in self._accounts
                }
                if new:
                    self._append(descriptor, encode_csv(new.values()))
                    self._accounts.update(new)

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _check_replaced(self) -> None:
        """Start again with a file that was replaced or that shrank; check the header of a new one."""
        status = self.path.stat()
        if (status.st_dev, status.st_ino) == self._inode and status.st_size >= self._size:
            return
        sink = CsvSink(self.path, COLUMNS)
        sink.open()
        sink.close()
        self._inode, self._size = (status.st_dev, status.st_ino), 0
        self._accounts.clear()

    @contextmanager
    def _open_file(self) -> Iterator[int]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _read_new_accounts(self, descriptor: int) -> None:
        """Read the accounts that were appended since the last call; cut off a killed process's torn row."""
        size = os.fstat(descriptor).st_size
        if size == self._size:
            return
        complete = complete_records_size(descriptor, self._size)
        if complete < size:
            os.ftruncate(descriptor, complete)
        with open(descriptor, encoding="utf-8", errors="replace", newline="", closefd=False) as file:
            file.seek(self._size)
            records = csv.reader(file)
            if not self._size:
                next(records)  # the header is not an account, even if an account has its name
            self._accounts.update(record[0] for record in records if record)
        self._size = complete

    def _append(self, descriptor: int, data: bytes) -> None:
        try:
            write_all(descriptor, data)
        except BaseException:
            os.ftruncate(descriptor, self._size)
            raise
        self._size += len(data)


def _truncate(name: str) -> str:
    return name.encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock that other processes respect; the kernel releases it if this process dies."""
    with _sink_errors(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
        while not _try_lock(descriptor):
            if time.monotonic() > deadline:
                raise SinkBusyError(f"{path}: locked by another process for {LOCK_TIMEOUT_SECONDS:g} s", 1.0)
            time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _sink_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkUnavailableError(f"{path}: {error.strerror}") from error
