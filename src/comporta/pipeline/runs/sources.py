"""Where items come from, item by item and by number, with what cannot be read in its place.

A line that cannot be read is an entry like any other, that says why: whoever reads on decides what becomes
of it. So one bad line never ends a run, and is never passed over in silence either.
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
"""A longer line is not read as an item."""

_IDENTITY_BYTES = 65_536
_TAKEN_FOR_BLANK = b" \t\r\n"
_UTF_8 = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


class Entry(NamedTuple):
    """One item. ``position`` counts from 0 without gaps; ``number`` is what people call it: its line.

    ``trouble`` says why it could not be read; then ``item`` is the text as it was found.
    """

    position: int
    number: int
    item: Any
    trouble: str = ""


class Source(Protocol):
    """What can be read from the beginning again, or once only: then it has no identity."""

    @property
    def total(self) -> int | None:
        """About how many entries there are, if that is known."""

    def identity(self) -> Mapping[str, Any] | None:
        """What it is known by; ``None``: it cannot be read twice."""

    def entries(self) -> Iterator[Entry]:
        """Read it, blocking."""


class Items:
    """Whatever can be iterated over, in this program's memory or made as it goes.

    It is known by how many items it has, if it can tell. That they are the same when a run goes on is for
    the program to see to.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    @property
    def total(self) -> int | None:
        """How many there are, where they are there already."""
        return len(self.items) if isinstance(self.items, Sized) else None

    def identity(self) -> Mapping[str, Any]:
        """The number of items is all that is known of them."""
        return {"kind": "items", "total": self.total}

    def entries(self) -> Iterator[Entry]:
        """Number them from 0."""
        for position, item in enumerate(self.items):
            yield Entry(position, position, item)


class FileSource:
    """A file: ``form`` is ``"lines"``, ``"csv"``, ``"jsonl"`` or ``"letters"``, left out: by its name.

    An item is the text of a line; a row as a dictionary by the names in the first one; an object of JSON;
    or what a dead letter is about. Empty lines are none. ``"-"`` is the standard input; it and any other pipe
    are read once.
    """

    def __init__(self, path: str | os.PathLike[str], form: str | None = None) -> None:
        self.path = Path(path)
        self.form = _form_of(self.path.name) if form is None else form
        if self.form not in FORMS:
            raise ValueError(f"form must be one of {', '.join(map(repr, FORMS))}, got {form!r:.50}")
        self._standard = os.fspath(path) == "-"

    @property
    def rereadable(self) -> bool:
        """Whether it can be read from the beginning again: what is in a pipe is gone once it is read."""
        return not (self._standard or self.path.is_fifo() or self.path.is_char_device())

    @property
    def total(self) -> int | None:
        """The lines in it: a little more than items, if some are empty or rows span several."""
        if not self.rereadable:
            return None
        with self._opened() as file:
            lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        return max(0, lines - (self.form == "csv"))

    def identity(self) -> Mapping[str, Any] | None:
        """Where it is, how long, and what it begins with."""
        if not self.rereadable:
            return None
        with self._opened() as file:
            begins = hashlib.sha256(file.read(_IDENTITY_BYTES)).hexdigest()
            size = os.fstat(file.fileno()).st_size
        return {
            "kind": self.form,
            "path": str(self.path.absolute()),
            "size_bytes": size,
            "begins": begins[:32],
        }

    def entries(self) -> Iterator[Entry]:
        """Read it from the beginning."""
        with self._opened() as file:
            found = FORMS[self.form](_Lines(file, self.path))
            for position, (number, item, trouble) in enumerate(found):
                yield Entry(position, number, item, trouble and f"line {number} {trouble}")

    def _opened(self) -> IO[bytes]:
        try:
            return os.fdopen(os.dup(0), "rb") if self._standard else self.path.open("rb")
        except OSError as error:
            raise SourceError(f"{self.path}: cannot be read: {error.strerror}") from error


def _form_of(name: str) -> str:
    for ending, form in _ENDINGS:
        if name.lower().endswith(ending):
            return form
    return "lines"


Found = tuple[int, Any, str]
"""A number, an item, and why it is none."""


class _Lines:
    """The lines of a file with their numbers; one is in memory at a time, and no more of it than allowed."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._file = file
        self.path = path
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        while line := self._read(LINE_BYTES_MAX + 1):
            self.number += 1
            if len(line) > LINE_BYTES_MAX and not line.endswith(b"\n"):
                self._skip()
            yield self._first(line) if self.number == 1 else line

    def _first(self, line: bytes) -> bytes:
        """Return a first line without the mark of its encoding, if it is ours."""
        if line.startswith(_UTF_16):
            raise SourceError(f"{self.path}:1: is UTF-16, convert it to UTF-8")
        return line.removeprefix(_UTF_8)

    def _skip(self) -> None:
        while (rest := self._read(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
            pass

    def _read(self, most: int) -> bytes:
        try:
            return self._file.readline(most)
        except OSError as error:
            raise SourceError(f"{self.path}:{self.number + 1}: cannot be read: {error.strerror}") from error


def _read_lines(lines: _Lines) -> Iterator[Found]:
    return _each(lines, lambda text: text)


def _read_json_lines(lines: _Lines) -> Iterator[Found]:
    return _each(lines, json.loads)


def _each(lines: _Lines, read: Callable[[str], Any]) -> Iterator[Found]:
    for line in lines:
        if line.strip(_TAKEN_FOR_BLANK):
            yield lines.number, *_item_of(line, read)


def _item_of(line: bytes, read: Callable[[str], Any]) -> tuple[Any, str]:
    if len(line) > LINE_BYTES_MAX:
        return _shown(line), f"is longer than {LINE_BYTES_MAX} bytes; only its beginning is here"
    try:
        text = line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        return _shown(line), f"is not UTF-8: byte {error.start + 1} is 0x{line[error.start]:02x}"
    try:
        return read(text), ""
    except (ValueError, RecursionError) as error:
        return text, f"is not JSON: {error}"


def _shown(line: bytes) -> str:
    """Return what can be shown of bytes that are no text: the rest is escaped, so that it can be got back."""
    text = line.rstrip(b"\r\n")[: LINE_BYTES_MAX // 16]
    return text.decode("utf-8", "backslashreplace")


def _read_letters(lines: _Lines) -> Iterator[Found]:
    """Read what dead letters are about; their numbers are those of the source they came from."""
    for number, letter, trouble in _read_json_lines(lines):
        if trouble:
            yield number, letter, trouble
        elif not (isinstance(letter, dict) and "item" in letter):
            yield number, letter, "is no dead letter: an object with an item must be there"
        else:
            yield _number_of(letter.get("position"), number), letter["item"], ""


def _number_of(told: Any, otherwise: int) -> int:
    return told if isinstance(told, int) and not isinstance(told, bool) and told >= 0 else otherwise


def _read_csv(lines: _Lines) -> Iterator[Found]:
    """Read rows by the names in the first; a row may span lines, its number is that of the first of them.

    The bound of a cell belongs to the whole process: it is raised to that of a line, and never lowered.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LINE_BYTES_MAX))
    pending: list[str] = []
    rows = csv.reader(_taking(lines, pending), strict=True)
    names = _names(rows, lines, pending)
    while True:
        pending.clear()
        number = lines.number + 1
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, _text_of(pending), f"is not CSV: {error}"
            continue
        trouble = _trouble_of(cells, names, pending)
        if trouble:
            yield number, _text_of(pending), trouble
        elif cells:
            yield number, dict(zip(names, cells, strict=True)), ""


def _taking(lines: _Lines, pending: list[str]) -> Iterator[str]:
    """Give lines as text and keep them; what is no UTF-8 is marked by characters that no text has."""
    for line in lines:
        text = line[:LINE_BYTES_MAX].decode("utf-8", "surrogateescape")
        pending.append(text)
        yield text


def _trouble_of(cells: list[str], names: list[str], pending: list[str]) -> str:
    if any(map(_is_no_text, pending)):
        return "is not UTF-8"
    if any(len(line) >= LINE_BYTES_MAX for line in pending):
        return f"is longer than {LINE_BYTES_MAX} bytes; only its beginning is here"
    if cells and len(cells) != len(names):
        return f"must have {len(names)} columns, has {len(cells)}"
    return ""


def _text_of(pending: list[str]) -> str:
    text = "".join(pending)
    return _shown(text.encode("utf-8", "surrogateescape")) if _is_no_text(text) else text


def _is_no_text(line: str) -> bool:
    return not line.isascii() and any("\udc80" <= one <= "\udcff" for one in line)


def _names(rows: Iterator[list[str]], lines: _Lines, pending: list[str]) -> list[str]:
    """Return the names of the columns: the first row that is not empty."""
    try:
        names = _first_row(rows, pending)
    except csv.Error as error:
        raise _misnamed(lines, f"the names of the columns are not CSV: {error}") from error
    if any(map(_is_no_text, pending)):
        raise _misnamed(lines, "the names of the columns are not UTF-8")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _misnamed(lines, f"columns must have different names, {twice[0]!r:.100} is there twice")
    return names


def _first_row(rows: Iterator[list[str]], pending: list[str]) -> list[str]:
    for row in rows:
        if row:
            return row
        pending.clear()
    return []


def _misnamed(lines: _Lines, why: str) -> SourceError:
    return SourceError(f"{lines.path}:{lines.number}: {why}")


FORMS: dict[str, Callable[[_Lines], Iterator[Found]]] = {
    "lines": _read_lines,
    "csv": _read_csv,
    "jsonl": _read_json_lines,
    "letters": _read_letters,
}
_ENDINGS = ((".csv", "csv"), (".dead.jsonl", "letters"), (".jsonl", "jsonl"), (".ndjson", "jsonl"))


def source_of(given: Any) -> Source:
    """Return a source for what a program gave: one already, the path of a file, or something to iterate."""
    if isinstance(given, os.PathLike):
        return FileSource(given)
    if isinstance(given, str | bytes):
        raise TypeError(f"source must be a Path if it is a file, not its name as text, got {given!r:.100}")
    if hasattr(given, "entries") and hasattr(given, "identity"):
        return cast(Source, given)
    if not isinstance(given, Iterable):
        raise TypeError(f"source must be iterable, asynchronously or not, or a Path, got {given!r:.100}")
    return Items(given)
