"""What a file says, before anybody judges it: raw tables, and where each thing in them was written.

Whatever is laid over the file (a variable, a short form spelled out) is put in its place here, so that what
is built from it in the end neither knows nor cares how a value came about, only where from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from comporta.settings.kinds import listed, shown
from comporta.settings.lines import DEPTH_MAX, Path, line_at, lines_of, table_shown
from comporta.settings.written import Source

BYTES_MAX = 1_000_000
"""The largest file that is read: whatever is larger is no configuration, and may have no end."""

_POSITION = re.compile(r"(?P<what>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)", re.DOTALL)
_TOO_DEEP = f"{{}}: tables and arrays must be nested at most {DEPTH_MAX} times"


class Document:
    """Tables in tables; ``name`` is that of the file."""

    def __init__(self, name: str, values: dict[str, Any], lines: dict[Path, int]) -> None:
        self.name = name
        self.values = values
        self._lines = lines
        self._placed: dict[Path, Source] = {}

    def at(self, path: Path) -> Source:
        """Return where a field, the last of the path, was written."""
        return self._placed.get(path) or self._in_file(path, path[:-1])

    def at_table(self, path: Path) -> Source:
        """Return where a table was written."""
        return self._placed.get(path) or self._in_file(path, path)

    def table(self, path: Path) -> dict[str, Any]:
        """Return a table; empty, and not part of the document, if there is none."""
        found = self.values
        for name in path:
            found = found.get(name, {})
            if not isinstance(found, dict):
                raise ValueError(f"{self._where_of(path)} must be a table, got {shown(found)}")
        return found

    def get(self, path: Path) -> Any:
        """Return whatever is there, or ``None``."""
        found: Any = self.values
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        return found

    def known(self, path: Path, allowed: Iterable[str]) -> None:
        """Refuse what nobody would read."""
        allowed = tuple(allowed)
        for name in self.table(path):
            if name not in allowed:
                where = self._in_file((*path, name), path)
                raise ValueError(f"{where}: fields must be among {listed(allowed)}, got {shown(name)}")

    def put(self, path: Path, value: Any, source: Source) -> None:
        """Write a value in its place; tables on the way that are not there yet are from the same source."""
        table = self.values
        for length, name in enumerate(path[:-1], 1):
            if not isinstance(table.get(name), dict):
                table[name] = {}
                self._placed[path[:length]] = source
            table = table[name]
        table[path[-1]] = value
        self._placed[path] = source

    def place(self, path: Path, source: Source) -> None:
        """Say that something comes from elsewhere."""
        self._placed[path] = source

    def _where_of(self, path: Path) -> str:
        source = self._in_file(path, path)
        return str(source) if len(path) > 1 else f"{source.where}: {path[-1]}"

    def _in_file(self, path: Path, table: Path) -> Source:
        line = line_at(self._lines, path)
        return Source(self.name if line is None else f"{self.name}:{line}", table_shown(table))


def read(name: str) -> Document:
    """Read a TOML file; ``ValueError`` with the line for what is none."""
    import tomllib  # noqa: PLC0415 - costs 5 ms, and most programs have no file

    with open(name, "rb") as file:  # noqa: PTH123 - a path is shown in messages as it was given
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise ValueError(f"{name}: a file must be at most {BYTES_MAX} bytes, got more")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}:{line}: text must be UTF-8, got byte {data[error.start]:#04x}") from None
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(_misread(name, text, str(error))) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP.format(name)) from None
    if _depth(values) > DEPTH_MAX:
        raise ValueError(_TOO_DEEP.format(name))
    return Document(name, values, lines_of(text))


def _depth(values: dict[str, Any]) -> int:
    """Return how deep tables and arrays are nested, one more than allowed at the most.

    Python fails where it compares or shows what is nested a thousand times.
    """
    level: list[Any] = [values]
    for depth in range(DEPTH_MAX + 1):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for some in inside for one in some if isinstance(one, dict | list)]
        if not level:
            return depth
    return DEPTH_MAX + 1


def _misread(name: str, text: str, error: str) -> str:
    """Return what TOML's reader says, with the line in front as in all other messages."""
    found = _POSITION.fullmatch(error)
    if found:
        return f"{name}:{found['line']}: {found['what']} (column {found['column']})"
    if error.endswith("(at end of document)"):
        return f"{name}:{text.rstrip().count(chr(10)) + 1}: {error}"
    return f"{name}: {error}"
