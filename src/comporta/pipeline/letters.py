"""Dead letters: what could not be done or written, with the reason, kept until somebody looks.

One JSON object a line, so that any tool reads it and a run can be fed with it again. A letter that was taken
is on the disk, also if the power goes. The file never grows past its bound: then there is an error, which
stops whoever has more, and nothing is thrown away.

It blocks; coroutines have it called on a thread.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from time import time
from typing import Any, Final, TypeVar

from comporta import forks
from comporta.errors import DeadLettersError, DeadLettersFullError
from comporta.pipeline.tail import whole_lines, write_all

T = TypeVar("T")

BYTES_MAX: Final = 1 << 30
REASON_CHARS_MAX: Final = 2000


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
        self._lock = Lock()
        self._descriptor: int | None = None
        forks.register(self)

    def open(self) -> None:
        """See that letters can be written; left out, the first one does so. Half a letter is cut off."""
        with self._lock:
            self._named(lambda: self._whole(self._opened()))

    def append(
        self, item: Any, reason: object, *, attempts: int = 1, key: Any = None, position: Any = None
    ) -> None:
        """Keep one; when this returns it is on the disk."""
        self.extend([Letter(item, str(reason), attempts, key, position)])

    def extend(self, letters: Iterable[Letter]) -> None:
        """Keep several, all or none, at the cost of one."""
        data = b"".join(_line(letter) for letter in letters)
        with self._lock:
            self._named(lambda: self._add(self._opened(), data))

    def close(self) -> None:
        """Let go of the file; the next letter opens it again."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
            if descriptor is not None:
                os.close(descriptor)

    def after_fork(self) -> None:
        """Have a descriptor of one's own: a lock on a file belongs to all who share one."""
        forks.renew(self._lock)
        self.close()

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

    def _opened(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._descriptor

    def _add(self, descriptor: int, data: bytes) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            size = self._mended(descriptor)
            if size + len(data) > self.max_bytes:
                raise DeadLettersFullError(
                    f"{self.path}: {size} bytes of dead letters, {len(data)} more would be over the bound of "
                    f"{self.max_bytes}: look at them, move the file away, and go on"
                )
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
            except BaseException:
                os.ftruncate(descriptor, size)  # all or none
                raise
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _whole(self, descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            self._mended(descriptor)
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    @staticmethod
    def _mended(descriptor: int) -> int:
        """Cut off half a letter of somebody who was killed; returns the size."""
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            size = whole_lines(descriptor, size)
            os.ftruncate(descriptor, size)
        return size

    def _named(self, work: Callable[[], T]) -> T:
        try:
            return work()
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
        text = json.dumps(record, default=_as_text)
    except (TypeError, ValueError, RecursionError):  # it has keys that are no texts, or holds itself
        text = json.dumps({**record, "key": repr(letter.key), "item": repr(letter.item)}, default=_as_text)
    return text.encode() + b"\n"


def _as_text(value: object) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


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
