"""A sink that appends rows as JSON, one object per line, to a file that can be read while it grows.

A batch is appended as a whole, as far as the system allows; an incomplete line of a killed process is removed
when the file is opened again. A run that resumes from a checkpoint also removes the rows beyond it. Without a
checkpoint rows are appended, and with a key the sink marks those that are in the file already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from comporta.errors import SinkRowError, SinkUnavailableError
from comporta.pipeline.files.torn_tail import complete_lines_size, is_complete_json, lines_before
from comporta.pipeline.sinks.base import ResumePoint, Row
from comporta.pipeline.sinks.columns import validate_key
from comporta.pipeline.sinks.sink_file import REPEATED_COLUMN, SinkFile
from comporta.pipeline.strict_json import dump_json


class JsonLinesSink:
    """Appends rows to the file ``path``, one JSON object per line.

    With a ``key`` (one field, or several), a row whose key is in the file already gets the field
    ``repeated``. With ``durable``, a batch survives a power failure; each batch then flushes the disk.
    """

    def __init__(
        self, path: str | os.PathLike[str], key: str | Sequence[str] | None = None, *, durable: bool = False
    ) -> None:
        self.path = Path(path)
        self.key = validate_key(key)
        self._file = SinkFile("JsonLinesSink", path, durable=durable)
        self._name = self._file.name

    def open(self) -> None:
        """Open the file, or create it, read its keys, and remove an incomplete line."""
        self._open(None)

    def open_run(self, point: ResumePoint) -> None:
        """Open the file and remove what the run wrote after its last checkpoint."""
        self._open(point)

    @property
    def end(self) -> int:
        """The size of the file."""
        return self._file.size

    def _open(self, point: ResumePoint | None) -> None:
        with self._file.open_exclusive(point) as descriptor:
            size = os.fstat(descriptor).st_size
            complete = complete_lines_size(descriptor, size)
            lacks_newline = is_complete_json(descriptor, complete, size)
            self._load_existing(descriptor, size if lacks_newline else complete)
            if lacks_newline:
                self._file.append(b"\n")  # the rest was written, or another program omits the last newline
            else:
                self._file.truncate_torn_row(descriptor, complete)

    def write(self, rows: Sequence[Row]) -> None:
        """Append a batch."""
        with self._file.locked():
            keys: dict[int, None] = {}
            self._file.append(b"".join(self._encode_row(index, row, keys) for index, row in enumerate(rows)))
            self._file.remember_keys(keys)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _load_existing(self, descriptor: int, end: int) -> None:
        """Check that this is a file of JSON lines, and remember the keys of its rows up to ``end``."""
        if os.pread(descriptor, 1, 0) not in (b"", b"{"):
            raise SinkUnavailableError(
                f"{self._name}: the file exists and does not hold JSON objects; choose another path"
            )
        with open(descriptor, "rb", closefd=False) as lines:
            for line in lines_before(lines, end):
                row = json.loads(line)
                if not self.key:
                    return
                if isinstance(row, dict) and all(field in row for field in self.key):
                    self._file.remember_keys({self._key_hash(row): None})

    def _encode_row(self, index: int, row: Row, keys: dict[int, None]) -> bytes:
        record = dict(row)
        if self.key:
            missing = [field for field in self.key if field not in record]
            if missing:
                raise SinkRowError(
                    f"{self._name}: row {index} of the batch has no value for the key {missing[0]!r}", index
                )
            if REPEATED_COLUMN in record:
                text = f"row {index} of the batch has the field {REPEATED_COLUMN!r}, reserved for the sink"
                raise SinkRowError(f"{self._name}: {text}", index)
            key = self._key_hash(record)
            if self._file.has_key(key) or key in keys:
                record[REPEATED_COLUMN] = True
            keys[key] = None
        try:
            return dump_json(record, default=str).encode() + b"\n"
        except Exception as error:  # also errors of the values' own methods
            raise SinkRowError(f"{self._name}: row {index} of the batch: {error}", index) from error

    def _key_hash(self, row: Row) -> int:
        """Return a hash of a key, the same for a row that was written and one that is read again."""
        return hash(dump_json([row[field] for field in self.key], default=str, sort_keys=True))
