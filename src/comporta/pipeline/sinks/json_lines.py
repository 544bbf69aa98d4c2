"""Rows as JSON, one object a line, there to be read while the file grows.

A batch is in the file whole or not at all, as far as this process can see to it; half a line that a killed
one left is cut off when the file is opened again. A resumed run appends; what it writes again is marked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from comporta.errors import SinkRowError, SinkUnavailableError
from comporta.pipeline.sinks.base import Row
from comporta.pipeline.sinks.columns import checked_key
from comporta.pipeline.sinks.files import REPEATED, SinkFile
from comporta.pipeline.strict_json import dumped
from comporta.pipeline.tail import is_whole, upto, whole_lines


class JsonLinesSink:
    """Appends rows to the file ``path``. With a ``key``, a field or several, those there already say so.

    ``durable``: a batch survives also a power cut, which takes the time of a disk's flush each.
    """

    def __init__(
        self, path: str | os.PathLike[str], key: str | Sequence[str] | None = None, *, durable: bool = False
    ) -> None:
        self.path = Path(path)
        self.key = checked_key(key)
        self._file = SinkFile("JsonLinesSink", path, durable=durable)
        self._name = self._file.name

    def open(self) -> None:
        """Open the file, or make it; learn what is there, and cut off half a line."""
        with self._file.opening() as descriptor:
            size = os.fstat(descriptor).st_size
            whole = whole_lines(descriptor, size)
            lacks_an_end = is_whole(descriptor, whole, size)
            self._learn(descriptor, size if lacks_an_end else whole)
            if lacks_an_end:
                self._file.append(b"\n")  # all but this was written, or somebody else leaves it out
            else:
                self._file.cut(descriptor, whole)

    def write(self, rows: Sequence[Row]) -> None:
        """Append a batch, whole."""
        with self._file.writing():
            keys: dict[int, None] = {}
            self._file.append(b"".join(self._line(index, row, keys) for index, row in enumerate(rows)))
            self._file.remember(keys)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _learn(self, descriptor: int, end: int) -> None:
        """See that the file was begun by us, and remember the keys in its rows up to ``end``."""
        if os.pread(descriptor, 1, 0) not in (b"", b"{"):
            raise SinkUnavailableError(f"{self._name}: there is a file already, and it was not begun by us")
        with open(descriptor, "rb", closefd=False) as lines:
            for line in upto(lines, end):
                row = json.loads(line)
                if not self.key:
                    return
                if isinstance(row, dict) and all(field in row for field in self.key):
                    self._file.remember({self._known(row): None})

    def _line(self, index: int, row: Row, keys: dict[int, None]) -> bytes:
        record = dict(row)
        if self.key:
            missing = [field for field in self.key if field not in record]
            if missing:
                raise SinkRowError(f"{self._name}: row {index} of the batch has no {missing[0]!r}", index)
            if REPEATED in record:
                text = f"row {index} of the batch has a field {REPEATED!r}, which is the file's own"
                raise SinkRowError(f"{self._name}: {text}", index)
            known = self._known(record)
            if self._file.is_known(known) or known in keys:
                record[REPEATED] = True
            keys[known] = None
        try:
            return dumped(record, default=str).encode() + b"\n"
        except Exception as error:  # also what the values' own methods raise
            raise SinkRowError(f"{self._name}: row {index} of the batch: {error}", index) from error

    def _known(self, row: Row) -> int:
        """Return what a key is remembered by: the same for what was written and for what is read again."""
        return hash(dumped([row[field] for field in self.key], default=str, sort_keys=True))
