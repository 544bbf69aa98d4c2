"""Sheets as files: a folder of CSV files that grow while people look at them.

A file has no addresses to write to, so who writes is alone with it (a lock between processes) and looks at
what others added since: a row whose account is there already is not written again.
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

from comporta.errors import SinkBusyError, SinkMissingError, SinkUnavailableError
from comporta.pipeline.cells import guarded
from comporta.pipeline.sinks.base import Row, Sink
from comporta.pipeline.sinks.csv_file import CsvSink
from comporta.pipeline.sinks.spreadsheets import Spreadsheet
from comporta.pipeline.writing.delivery import Quota
from comporta.retry.retry import Retry
from comporta.service.batch.sheets import patient
from comporta.service.batch.values import COLUMNS

LOCK_SECONDS: Final = 10.0
NAME_BYTES_MAX: Final = 160
"""Of a file's 255, which its number and the name of its lock need as well."""

_LOOK_SECONDS = 0.01
_ID = re.compile(r"[0-9a-f]{24}")
_UNFIT = re.compile(r"[^\w .()-]+")


class LocalSheets:
    """Spreadsheets in a folder, which is made when the first one is."""

    quota: Quota | None = None

    def __init__(self, folder: str | os.PathLike[str], retry: Retry | None = None) -> None:
        self.folder = Path(folder)
        self.retry = retry or patient(retries=3, base=0.2)

    def open(self) -> None:
        """There is nothing to do before the first file."""

    def create(self, name: str, marker: str) -> Spreadsheet:
        """Make the file of a mark, or find it, whatever it was called then."""
        number = hashlib.sha256(marker.encode()).hexdigest()[:24]
        shown = _cut(" ".join(_UNFIT.sub(" ", name).split())).strip(" .") or "sheet"
        with _named(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(self.folder / ".lock"):
            path = self._found(number) or self.folder / f"{shown}-{number}.csv"
            sink = CsvSink(path, COLUMNS)
            sink.open()
            sink.close()
        return Spreadsheet(number, path.absolute().as_uri(), name)

    def has(self, spreadsheet_id: str) -> bool:
        """Look for the file."""
        return self._found(spreadsheet_id) is not None

    def sink(self, spreadsheet_id: str) -> Sink:
        """Write to a file."""
        path = self._found(spreadsheet_id)
        if path is None:
            raise SinkMissingError(f"{self.folder}: there is no sheet {spreadsheet_id!r:.50}")
        return LocalSheet(path)

    def close(self) -> None:
        """Nothing is held."""

    def _found(self, number: str) -> Path | None:
        if _ID.fullmatch(number) is None:
            return None
        return next(self.folder.glob(f"*-{number}.csv"), None)


class LocalSheet:
    """A file that several processes write to, each account once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = path.with_name(f".{path.name}.lock")
        self._accounts: set[str] = set()
        self._read = 0

    def open(self) -> None:
        """See that it is there."""
        if not self.path.exists():
            raise SinkMissingError(f"{self.path}: somebody removed it")

    def write(self, rows: Sequence[Row]) -> None:
        """Append those whose account is not there yet."""
        sink = CsvSink(self.path, COLUMNS)
        with _alone(self._lock):
            self.open()
            sink.open()  # cuts off half a row of somebody who was killed
            try:
                self._learn()
                shown = [{**row, COLUMNS[0]: _told_apart(str(row[COLUMNS[0]]))} for row in rows]
                new = {account: row for row in shown if (account := _key(row)) not in self._accounts}
                if new:
                    sink.write(list(new.values()))
            finally:
                sink.close()

    def close(self) -> None:
        """Nothing is held."""

    def _learn(self) -> None:
        """Read what was added since the last time; a file that is shorter than it was is another one."""
        with _named(self.path), self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < self._read:
                self._read = 0
                self._accounts.clear()
            file.seek(self._read)
            added = io.TextIOWrapper(file, "utf-8", "replace", newline="")
            records = csv.reader(added)
            if not self._read:
                next(records, None)  # the header is no account, and there may be one of its name
            self._accounts.update(record[0] for record in records if record)
            self._read = size


def _cut(name: str) -> str:
    return name.encode()[:NAME_BYTES_MAX].decode("utf-8", "ignore")


def _told_apart(account: str) -> str:
    """Return an account that no guard makes look like another: ``'=1`` stays apart from ``=1``."""
    bare = account.lstrip("'")
    return account if bare == account or guarded(bare) == bare else f"'{account}"


def _key(row: Row) -> str:
    """Return an account as it stands in the file."""
    return str(guarded(row[COLUMNS[0]]))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock between processes, which the kernel frees when its holder dies."""
    with _named(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise SinkBusyError(f"{path}: others held it for {LOCK_SECONDS:g} s", 1.0)
            time.sleep(_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SinkUnavailableError(f"{path}: {error.strerror}") from error
