"""Dead letters: items and rows that failed for good, with the reason, in a file.

The file has one JSON object per line, so any tool can read it, and a run can process its items again. A dead
letter that was accepted is on the disk, even after a power failure. The file never grows beyond its limit:
then appending raises an error, which stops the caller, and no dead letter is dropped.

This module blocks; coroutines call it on a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from comporta.errors import DeadLettersError, DeadLettersFullError
from comporta.pipeline.files.append_only import AppendOnlyFile
from comporta.pipeline.files.torn_tail import complete_lines_size, is_complete_json
from comporta.pipeline.strict_json import dump_json
from comporta.runtime import RUNTIME
from comporta.validators import require_integer

BYTES_MAX: Final = 1 << 30
REASON_CHARS_MAX: Final = 2000
FILE_PREFIX: Final = b'{"at":'
"""The bytes with which every file of dead letters starts."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One item or row that failed, the reason, the number of attempts, and the time ``at`` (Unix seconds).

    ``key`` and ``position`` identify it for its pipeline or writer; ``line`` is its line in the file. ``id``
    is the run and the index of an item, in a run with a checkpoint: a run that resumes repeats none of its
    dead letters.
    """

    item: Any
    reason: str
    attempts: int = 1
    key: Any = None
    position: Any = None
    at: float = 0.0
    line: int = 0
    id: str | None = None


class DeadLetters:
    """A file of dead letters of at most ``max_bytes``; all processes that open the ``path`` share it."""

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = BYTES_MAX) -> None:
        self.path = Path(path)
        self.max_bytes = require_integer("max_bytes", max_bytes, 1)
        self._file = AppendOnlyFile(path, 0o600, durable=True)

    def open(self) -> None:
        """Open the file, or create it, and remove an incomplete last line; appending does so, too."""
        try:
            with self._locked_file() as descriptor:
                self._repair_tail(descriptor)
        except BaseException:
            self.close()
            raise

    def append(
        self, item: Any, reason: object, *, attempts: int = 1, key: Any = None, position: Any = None
    ) -> None:
        """Append one dead letter; when this returns, it is on the disk."""
        self.extend([DeadLetter(item, str(reason), attempts, key, position)])

    def extend(self, dead_letters: Iterable[DeadLetter]) -> None:
        """Append several dead letters, all or none, at the cost of appending one."""
        data = b"".join(encode_dead_letter(each).encode() + b"\n" for each in dead_letters)
        with self._locked_file() as descriptor:
            size = self._repair_tail(descriptor)
            if size + len(data) > self.max_bytes:
                raise DeadLettersFullError(
                    f"{self.path}: the file has {size} bytes, {len(data)} more would exceed max_bytes="
                    f"{self.max_bytes}; inspect the dead letters and move the file away to continue"
                )
            self._file.append(descriptor, size, data)

    def close(self) -> None:
        """Close the file; the next dead letter opens it again."""
        with self._file.lock:
            self._file.close()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Iterator[DeadLetter]:
        """Yield the dead letters of a file; an error names a line that is not one.

        It ignores an incomplete last line, which another process may be writing.
        """
        try:
            with Path(path).open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.endswith(b"\n"):
                        yield _parse_line(line, number, path)
        except OSError as error:
            raise DeadLettersError(f"{path}: {error.strerror}") from error

    def positions_of(self, run: str) -> Iterator[int]:
        """Yield the indexes of the items of which a run has dead letters in the file."""
        prefix = f"{run}-"
        try:
            with self.path.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if prefix.encode() in line and line.endswith(b"\n"):
                        name = str(_parse_line(line, number, self.path).id)
                        if name.startswith(prefix) and name[len(prefix) :].isdecimal():
                            yield int(name[len(prefix) :])
        except OSError as error:
            raise DeadLettersError(f"{self.path}: {error.strerror}") from error

    def _repair_tail(self, descriptor: int) -> int:
        """Remove the incomplete line of a killed process and return the size; raises for other files."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, len(FILE_PREFIX), 0) != FILE_PREFIX[:size]:
            raise DeadLettersError(
                f"{self.path}: the file exists and is not a file of dead letters; choose another path"
            )
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            complete = complete_lines_size(descriptor, size)
            if is_complete_json(descriptor, complete, size):
                return self._file.append(descriptor, size, b"\n")
            os.ftruncate(descriptor, complete)
            size = complete
        return size

    @contextmanager
    def _locked_file(self) -> Iterator[int]:
        try:
            with self._file.lock, self._file.open_locked() as descriptor:
                yield descriptor
        except OSError as error:
            raise DeadLettersError(f"{self.path}: {error.strerror}") from error


def encode_dead_letter(dead_letter: DeadLetter) -> str:
    """Return a dead letter as JSON, in one line."""
    record = {
        "at": dead_letter.at or round(RUNTIME.unix_time(), 3),
        "reason": dead_letter.reason[:REASON_CHARS_MAX],
        "attempts": dead_letter.attempts,
        "key": dead_letter.key,
        "position": dead_letter.position,
        **({} if dead_letter.id is None else {"id": dead_letter.id}),
        "item": dead_letter.item,
    }
    try:
        text = dump_json(record, default=_as_text)
    except (
        TypeError,
        ValueError,
        RecursionError,
    ):  # a key that is not a string, or a cycle
        key = None if dead_letter.key is None else repr(dead_letter.key)
        text = dump_json({**record, "key": key, "item": repr(dead_letter.item)}, default=_as_text)
    return text


def _as_text(value: object) -> str:
    try:
        return str(value.isoformat() if hasattr(value, "isoformat") else value)
    except Exception:  # an item that cannot be printed is kept, too
        return object.__repr__(value)


def _parse_line(line: bytes, number: int, path: str | os.PathLike[str]) -> DeadLetter:
    try:
        record = json.loads(line)
        return DeadLetter(
            record["item"],
            record["reason"],
            record.get("attempts", 1),
            record.get("key"),
            record.get("position"),
            record.get("at", 0.0),
            number,
            record.get("id"),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, ValueError) else "no item or no reason"
        text = f"{path}, line {number}: expected a dead letter, got {line[:80]!r}: {reason}"
        raise DeadLettersError(text, number) from error
