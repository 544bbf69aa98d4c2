"""Sources of items: files and iterables, read entry by entry.

A line that cannot be parsed is an entry with an error. The run decides what happens to it, so one bad line
neither ends a run nor is skipped silently.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast

from comporta.errors import SourceError

LINE_BYTES_MAX = 16 * 1024 * 1024
"""A longer line is an entry with an error."""

LINE = "line"
"""The word for the items of files and of shared runs in messages."""

_IDENTITY_BYTES = 65_536
_BLANK = b" \t\r\n"
_UTF_8_BOM = b"\xef\xbb\xbf"
_UTF_16_BOMS = (b"\xff\xfe", b"\xfe\xff")


class SourceEntry(NamedTuple):
    """One item. ``position`` counts from 0 without gaps; ``number`` is its line, or its position.

    ``error`` says why it could not be parsed; then ``item`` is the original text. ``noun`` is the word for it
    in messages, before its number.
    """

    position: int
    number: int
    item: Any
    error: str = ""
    noun: str = "item"

    def name(self, key: Any = None) -> str:
        """Return how messages name the item: ``line 7 (key 'a-1')``."""
        return item_name(self.noun, self.number, key)


def item_name(noun: str, number: Any, key: Any = None) -> str:
    """Return the name of an item in messages: its line or its number, and its key if it has one."""
    return f"{noun} {number}" if key is None else f"{noun} {number} (key {key!r:.100})"


class EntrySource(Protocol):
    """Something to read items from; one that can be read only once has no identity."""

    @property
    def total(self) -> int | None:
        """The approximate number of entries, if known."""

    def identity(self) -> Mapping[str, Any] | None:
        """Return what identifies the source; ``None`` if it cannot be read again."""

    def entries(self) -> Iterator[SourceEntry]:
        """Read the entries, blocking."""


class IterableSource:
    """Any iterable of the program.

    Its identity is the number of its items, if known. The program has to provide the same items when a run
    resumes.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    @property
    def total(self) -> int | None:
        """The number of items, if the iterable has a length."""
        return len(self.items) if isinstance(self.items, Sized) else None

    def identity(self) -> Mapping[str, Any]:
        """Return the kind of source and the number of items."""
        return {"kind": "items", "total": self.total}

    def entries(self) -> Iterator[SourceEntry]:
        """Read the items, numbered from 0."""
        for position, item in enumerate(self.items):
            yield SourceEntry(position, position, item)


class FileSource:
    """A file. ``form`` is ``"lines"``, ``"csv"``, ``"jsonl"`` or ``"letters"``; ``None``: by its name.

    An item is the text of a line; a row as a dictionary with the column names of the first row; a JSON value;
    or the item of a dead letter. Empty lines are skipped. The path ``"-"`` is the standard input, which like
    any pipe can be read only once.
    """

    def __init__(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        self.path = Path(path)
        self.form = _form_from_name(self.path.name) if form is None else form
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(map(repr, FORMS))}, got {form!r:.50}")
        self._is_stdin = os.fspath(path) == "-"

    @property
    def rereadable(self) -> bool:
        """Whether the file can be read again from the beginning, unlike a pipe."""
        return not (self._is_stdin or self.path.is_fifo() or self.path.is_char_device())

    @property
    def total(self) -> int | None:
        """The number of lines: more than items, if some are empty or rows span several lines."""
        if not self.rereadable:
            return None
        with self._open() as file:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        return max(0, lines - (self.form == "csv"))

    def identity(self) -> Mapping[str, Any] | None:
        """Return the path, the size and a hash of the beginning of the file."""
        if not self.rereadable:
            return None
        with self._open() as file:
            begins = hashlib.sha256(file.read(_IDENTITY_BYTES)).hexdigest()
            size = os.fstat(file.fileno()).st_size
        return {
            "kind": self.form,
            "path": str(self.path.absolute()),
            "size_bytes": size,
            "begins": begins[:32],
        }

    def entries(self) -> Iterator[SourceEntry]:
        """Read the file from the beginning."""
        with self._open() as file:
            parsed = FORMS[self.form](_LineReader(file, self.path))
            for position, (number, item, error) in enumerate(parsed):
                yield SourceEntry(position, number, item, error and f"line {number} {error}", LINE)

    def _open(self) -> IO[bytes]:
        try:
            return os.fdopen(os.dup(0), "rb") if self._is_stdin else self.path.open("rb")
        except OSError as error:
            raise SourceError(f"cannot read {self.path}: {error.strerror}") from error


def _form_from_name(name: str) -> str:
    for ending, form in _ENDINGS:
        if name.lower().endswith(ending):
            return form
    return "lines"


ParsedLine = tuple[int, Any, str]
"""A line number, an item, and why it could not be parsed."""


class _LineReader:
    """The lines of a file and their numbers; at most one bounded line is in memory."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self.path = path
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        while line := self._read(LINE_BYTES_MAX + 1):
            self.number += 1
            if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                self._skip_rest_of_line()
            yield self._without_bom(line) if self.number == 1 else line

    def _without_bom(self, line: bytes) -> bytes:
        """Return the first line without a UTF-8 byte order mark."""
        if line.startswith(_UTF_16_BOMS):
            raise SourceError(f"{self.path}, line 1: expected UTF-8, got UTF-16; convert the file to UTF-8")
        return line.removeprefix(_UTF_8_BOM)

    def _skip_rest_of_line(self) -> None:
        while (rest := self._read(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
            pass

    def _read(self, size_max: int) -> bytes:
        try:
            return self._file.readline(size_max)
        except OSError as error:
            raise SourceError(f"cannot read {self.path}, line {self.number + 1}: {error.strerror}") from error


def _read_lines(lines: _LineReader) -> Iterator[ParsedLine]:
    return _parse_each(lines, lambda text: text)


def _read_json_lines(lines: _LineReader) -> Iterator[ParsedLine]:
    return _parse_each(lines, json.loads)


def _parse_each(lines: _LineReader, read: Callable[[str], Any]) -> Iterator[ParsedLine]:
    for line in lines:
        if line.strip(_BLANK):
            yield lines.number, *_parse_item(line, read)


def _parse_item(line: bytes, read: Callable[[str], Any]) -> tuple[Any, str]:
    if len(line) > LINE_BYTES_MAX:
        return _printable(line), f"is longer than {LINE_BYTES_MAX} bytes; the item is its beginning"
    try:
        text = line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        return _printable(line), f"is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
    try:
        return read(text), ""
    except (ValueError, RecursionError) as error:
        return text, f"is not JSON: {error}"


def _printable(line: bytes) -> str:
    """Return bytes that are not UTF-8 as text, with escapes, so that the bytes can be recovered."""
    text = line.rstrip(b"\r\n")[: LINE_BYTES_MAX // 16]
    return text.decode("utf-8", "backslashreplace")


def _read_dead_letters(lines: _LineReader) -> Iterator[ParsedLine]:
    """Read the items of dead letters, with their numbers in the original source."""
    for number, dead_letter, error in _read_json_lines(lines):
        if error:
            yield number, dead_letter, error
        elif not (isinstance(dead_letter, dict) and "item" in dead_letter):
            yield number, dead_letter, "is not a dead letter: expected a JSON object with an item"
        else:
            yield _original_number(dead_letter.get("position"), number), dead_letter["item"], ""


def _original_number(position: Any, line: int) -> int:
    is_number = isinstance(position, int) and not isinstance(position, bool) and position >= 0
    return position if is_number else line


def _read_csv(lines: _LineReader) -> Iterator[ParsedLine]:
    """Read rows as dictionaries keyed by the names in the first row; the number of a row is its first line.

    The limit of the csv module on the size of a cell applies to the whole process. This raises it to the size
    of a line and never lowers it.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES_MAX))
    pending: list[str] = []
    rows = csv.reader(_text_lines(lines, pending), strict=True)
    names = _column_names(rows, lines, pending)
    while True:
        pending.clear()
        number = lines.number + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _source_text(pending), f"is not CSV: {error}"
            continue
        row_error = _row_error(cells, names, pending)
        if row_error:
            yield number, _source_text(pending), row_error
        elif cells:
            yield number, dict(zip(names, cells, strict=True)), ""


def _text_lines(lines: _LineReader, pending: list[str]) -> Iterator[str]:
    """Yield lines as text and add them to ``pending``; invalid UTF-8 becomes surrogates."""
    for line in lines:
        text = line[:LINE_BYTES_MAX].decode("utf-8", "surrogateescape")
        pending.append(text)
        yield text


def _row_error(cells: list[str], names: list[str], pending: list[str]) -> str:
    if any(map(_has_invalid_utf8, pending)):
        return "is not UTF-8"
    if any(len(line) >= LINE_BYTES_MAX for line in pending):
        return f"is longer than {LINE_BYTES_MAX} bytes; the item is its beginning"
    if cells and len(cells) != len(names):
        return f"must have {len(names)} columns, got {len(cells)}"
    return ""


def _source_text(pending: list[str]) -> str:
    text = "".join(pending)
    return _printable(text.encode("utf-8", "surrogateescape")) if _has_invalid_utf8(text) else text


def _has_invalid_utf8(line: str) -> bool:
    return not line.isascii() and any("\udc80" <= one <= "\udcff" for one in line)


def _column_names(rows: Iterator[list[str]], lines: _LineReader, pending: list[str]) -> list[str]:
    """Return the names of the columns, from the first row that is not empty."""
    try:
        names = _first_row(rows, pending)
    except csv.Error as error:
        raise _header_error(lines, f"the column names are not CSV: {error}") from error
    if any(map(_has_invalid_utf8, pending)):
        raise _header_error(lines, "the column names are not UTF-8")
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise _header_error(lines, f"column names must be different, got {duplicates[0]!r:.100} twice")
    return names


def _first_row(rows: Iterator[list[str]], pending: list[str]) -> list[str]:
    for row in rows:
        if row:
            return row
        pending.clear()
    return []


def _header_error(lines: _LineReader, reason: str) -> SourceError:
    return SourceError(f"{lines.path}, line {lines.number}: {reason}")


FORMS: dict[str, Callable[[_LineReader], Iterator[ParsedLine]]] = {
    "lines": _read_lines,
    "csv": _read_csv,
    "jsonl": _read_json_lines,
    "letters": _read_dead_letters,
}
_ENDINGS = ((".csv", "csv"), (".dead.jsonl", "letters"), (".jsonl", "jsonl"), (".ndjson", "jsonl"))


def source_of(given: Any) -> EntrySource:
    """Return the source for a value of the program: a source, the path of a file, or an iterable."""
    if isinstance(given, os.PathLike):
        return FileSource(given)
    if isinstance(given, str | bytes):
        raise TypeError(f"source must be a Path for a file, not a string, got {given!r:.100}")
    if hasattr(given, "entries") and hasattr(given, "identity"):
        return cast(EntrySource, given)
    if not isinstance(given, Iterable):
        raise TypeError(f"source must be an iterable, an asynchronous iterable or a Path, got {given!r:.100}")
    return IterableSource(given)
