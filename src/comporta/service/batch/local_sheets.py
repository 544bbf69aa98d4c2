"""Sheets as CSV files in a directory, readable while they grow.

Unlike Google Sheets, a file has no row addresses to overwrite. A writer therefore locks the file between
processes, reads what other writers appended since, and skips rows whose account the file already has.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from comporta.errors import SinkBusyError, SinkNotFoundError, SinkUnavailableError
from comporta.pipeline.sinks.base import Row, Sink
from comporta.pipeline.sinks.csv_file import CsvSink
from comporta.pipeline.sinks.formula_escaping import csv_cell
from comporta.pipeline.sinks.spreadsheets import Spreadsheet
from comporta.pipeline.writer.delivery import WriteLimiter
from comporta.retry.retry import Retry
from comporta.service.batch.models import COLUMNS
from comporta.service.batch.sheets import sheet_retry

LOCK_TIMEOUT_SECONDS: Final = 10.0
NAME_BYTES_MAX: Final = 160
"""A file name has at most 255 bytes, and the id and the lock's name need some of them."""

_LOCK_POLL_SECONDS = 0.01
_ID = re.compile(r"[0-9a-f]{24}")
_UNSAFE_CHARS = re.compile(r"[^\w .()-]+")


class LocalSheets:
    """Spreadsheets in a directory, which is created with the first one."""

    quota: WriteLimiter | None = None

    def __init__(self, directory: str | os.PathLike[str], retry: Retry | None = None) -> None:
        self.directory = Path(directory)
        self.retry = retry or sheet_retry(retries=3, base=0.2)

    def open(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Return the file for ``marker``; create it unless it exists, under any name."""
        sheet_id = hashlib.sha256(marker.encode()).hexdigest()[:24]
        stem = _truncate(" ".join(_UNSAFE_CHARS.sub(" ", name).split())).strip(" .") or "sheet"
        with _sink_errors(self.directory):
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _exclusive_lock(self.directory / ".lock"):
            path = self._find(sheet_id) or self.directory / f"{stem}-{sheet_id}.csv"
            sink = CsvSink(path, COLUMNS)
            sink.open()
            sink.close()
        return Spreadsheet(sheet_id, path.absolute().as_uri(), name)

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
        self._accounts: set[str] = set()
        self._bytes_read = 0

    def open(self) -> None:
        """Check that the file exists."""
        if not self.path.exists():
            raise SinkNotFoundError(f"sheet file was removed: {self.path}")

    def write(self, rows: Sequence[Row]) -> None:
        """Append the rows whose account the file does not have yet."""
        sink = CsvSink(self.path, COLUMNS)
        with _exclusive_lock(self._lock_path):
            self.open()
            sink.open()  # cuts off the torn row of a killed process
            try:
                self._read_new_accounts()
                escaped = [{**row, COLUMNS[0]: _unambiguous(str(row[COLUMNS[0]]))} for row in rows]
                new = {
                    account: row for row in escaped if (account := _stored_account(row)) not in self._accounts
                }
                if new:
                    sink.write(list(new.values()))
            finally:
                sink.close()

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def _read_new_accounts(self) -> None:
        """Read the accounts appended since the last call; a file that shrank was replaced, so read it all."""
        with _sink_errors(self.path), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < self._bytes_read:
                self._bytes_read = 0
                self._accounts.clear()
            file.seek(self._bytes_read)
            added = io.TextIOWrapper(file, "utf-8", "replace", newline="")
            records = csv.reader(added)
            if not self._bytes_read:
                next(records, None)  # the header is not an account, even if an account has its name
            self._accounts.update(record[0] for record in records if record)
            self._bytes_read = size


def _truncate(name: str) -> str:
    return name.encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")


def _unambiguous(account: str) -> str:
    """Return an account that formula escaping cannot make equal to another: ``'=1`` differs from ``=1``."""
    bare = account.lstrip("'")
    return account if bare == account or csv_cell(bare) == bare else f"'{account}"


def _stored_account(row: Row) -> str:
    """Return an account as the file stores it."""
    return str(csv_cell(row[COLUMNS[0]]))


@contextmanager
def _exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the kernel releases it if this process dies."""
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
