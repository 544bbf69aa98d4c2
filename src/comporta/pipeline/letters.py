"""Dead letters: what could not be done or written, with the reason, kept until somebody looks.

One JSON object a line, so that any tool reads it and a run can be fed with it again. A letter that was taken
is on the disk, also if the power goes. The file never grows past its bound: then there is an error, which
stops whoever has more, and nothing is thrown away.

It blocks; coroutines have it called on a thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any, Final

from comporta.errors import DeadLettersError, DeadLettersFullError
from comporta.pipeline.appended import AppendedFile
from comporta.pipeline.strict_json import dumped
from comporta.pipeline.tail import is_whole, whole_lines

BYTES_MAX: Final = 1 << 30
REASON_CHARS_MAX: Final = 2000
BEGUN: Final = b'{"at":'
"""What every file of letters begins with."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One thing that was given up: what, why, after how many tries; ``at`` is when (Unix seconds).

    ``key`` and ``position`` are what the one who gave up knew it by; ``line`` is its line in the file.
    """

    item: Any
    reason: str
    attempts: int = 1
    key: Any = None
    position: Any = None
    at: float = 0.0
    line: int = 0


class DeadLetters:
    """A file of letters, shared by whoever opens the same path; ``max_bytes`` bounds it."""

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = BYTES_MAX) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes must be an int, got {max_bytes!r:.50}")
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, got {max_bytes}")
        self.path = Path(path)
        self.max_bytes = max_bytes
        self._file = AppendedFile(path, 0o600, durable=True)

    def open(self) -> None:
        """See that letters can be written; left out, the first one does so. Half a letter is cut off."""
        with self._in_turn() as descriptor:
            self._mended(descriptor)

    def append(
        self, item: Any, reason: object, *, attempts: int = 1, key: Any = None, position: Any = None
    ) -> None:
        """Keep one; when this returns it is on the disk."""
        self.extend([Letter(item, str(reason), attempts, key, position)])

    def extend(self, letters: Iterable[Letter]) -> None:
        """Keep several, all or none, at the cost of one."""
        data = b"".join(_line(letter) for letter in letters)
        with self._in_turn() as descriptor:
            size = self._mended(descriptor)
            if size + len(data) > self.max_bytes:
                raise DeadLettersFullError(
                    f"{self.path}: {size} bytes of dead letters, {len(data)} more would be over the bound of "
                    f"{self.max_bytes}: look at them, move the file away, and go on"
                )
            self._file.append(descriptor, size, data)

    def close(self) -> None:
        """Let go of the file; the next letter opens it again."""
        with self._file.lock:
            self._file.close()

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Iterator[Letter]:
        """Return the letters of a file, one by one; an error names the line that is none.

        What is not a whole line yet is no letter yet.
        """
        try:
            with Path(path).open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.endswith(b"\n"):
                        yield _letter(line, number, path)
        except OSError as error:
            raise DeadLettersError(f"{path}: {error.strerror}") from error

    def _mended(self, descriptor: int) -> int:
        """Cut off half a letter of somebody who was killed; returns the size. Other files are left alone."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, len(BEGUN), 0) != BEGUN[:size]:
            raise DeadLettersError(f"{self.path}: there is a file already, and it holds no dead letters")
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            whole = whole_lines(descriptor, size)
            if is_whole(descriptor, whole, size):
                return self._file.append(descriptor, size, b"\n")
            os.ftruncate(descriptor, whole)
            size = whole
        return size

    @contextmanager
    def _in_turn(self) -> Iterator[int]:
        try:
            with self._file.lock, self._file.in_turn() as descriptor:
                yield descriptor
        except OSError as error:
            raise DeadLettersError(f"{self.path}: {error.strerror}") from error


def _line(letter: Letter) -> bytes:
    record = {
        "at": letter.at or round(time(), 3),
        "reason": letter.reason[:REASON_CHARS_MAX],
        "attempts": letter.attempts,
        "key": letter.key,
        "position": letter.position,
        "item": letter.item,
    }
    try:
        text = dumped(record, default=_as_text)
    except (TypeError, ValueError, RecursionError):  # it has keys that are no texts, or holds itself
        key = None if letter.key is None else repr(letter.key)
        text = dumped({**record, "key": key, "item": repr(letter.item)}, default=_as_text)
    return text.encode() + b"\n"


def _as_text(value: object) -> str:
    try:
        return str(value.isoformat() if hasattr(value, "isoformat") else value)
    except Exception:  # a letter is kept whatever its item does
        return object.__repr__(value)


def _letter(line: bytes, number: int, path: str | os.PathLike[str]) -> Letter:
    try:
        record = json.loads(line)
        return Letter(
            record["item"],
            record["reason"],
            record.get("attempts", 1),
            record.get("key"),
            record.get("position"),
            record.get("at", 0.0),
            number,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = "not a dead letter" if not isinstance(error, ValueError) else str(error)
        raise DeadLettersError(f"{path}, line {number}: {why}: {line[:80]!r}", number) from error
