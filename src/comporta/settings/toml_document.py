"""``TomlDocument``: the raw tables of a settings file, with the origin of each value.

Overrides by variables and the expansion of short forms write into the document too, so that the settings are
built from one source and know only where each value comes from. Nothing here validates a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from comporta.settings.field_types import quoted_list, short_repr
from comporta.settings.toml_positions import DEPTH_MAX, KeyPath, key_lines, nearest_line, table_header
from comporta.settings.toml_table import Origin

FILE_BYTES_MAX = 1_000_000
"""The largest file that is read, because a path may name an endless device."""

_POSITION = re.compile(r"(?P<problem>.*) \(at line (?P<line>\d+), column (?P<column>\d+)\)", re.DOTALL)
_TOO_DEEP = f"{{}}: tables and arrays must be nested at most {DEPTH_MAX} levels deep"


class TomlDocument:
    """Nested tables; ``name`` is the name of the file."""

    def __init__(self, name: str, values: dict[str, Any], lines: dict[KeyPath, int]) -> None:
        self.name = name
        self.values = values
        self._lines = lines
        self._origins: dict[KeyPath, Origin] = {}

    def field_origin(self, path: KeyPath) -> Origin:
        """Return where the field at a path was written."""
        return self._origins.get(path) or self._file_origin(path, path[:-1])

    def table_origin(self, path: KeyPath) -> Origin:
        """Return where a table was written."""
        return self._origins.get(path) or self._file_origin(path, path)

    def table(self, path: KeyPath) -> dict[str, Any]:
        """Return the table at a path, or a new empty one that is not part of the document."""
        table = self.values
        for name in path:
            table = table.get(name, {})
            if not isinstance(table, dict):
                raise ValueError(f"{self._table_place(path)} must be a table, got {short_repr(table)}")
        return table

    def get(self, path: KeyPath) -> Any:
        """Return the value at a path, or ``None``."""
        value: Any = self.values
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def reject_unknown(self, path: KeyPath, allowed: Iterable[str]) -> None:
        """Raise an error if the table has a field that is not among ``allowed``."""
        allowed = tuple(allowed)
        for name in self.table(path):
            if name not in allowed:
                where = self._file_origin((*path, name), path)
                raise ValueError(
                    f"{where}: fields must be among {quoted_list(allowed)}, got {short_repr(name)}"
                )

    def put(self, path: KeyPath, value: Any, origin: Origin) -> None:
        """Set the value at a path; tables created on the way get the same origin."""
        table = self.values
        for length, name in enumerate(path[:-1], 1):
            if not isinstance(table.get(name), dict):
                table[name] = {}
                self._origins[path[:length]] = origin
            table = table[name]
        table[path[-1]] = value
        self._origins[path] = origin

    def set_origin(self, path: KeyPath, origin: Origin) -> None:
        """Change the origin of a value or a table."""
        self._origins[path] = origin

    def _table_place(self, path: KeyPath) -> str:
        source = self._file_origin(path, path)
        return str(source) if len(path) > 1 else f"{source.where}: {path[-1]}"

    def _file_origin(self, path: KeyPath, table: KeyPath) -> Origin:
        line = nearest_line(self._lines, path)
        return Origin(self.name if line is None else f"{self.name}:{line}", table_header(table))


def read_document(name: str) -> TomlDocument:
    """Read a TOML file; raise ``ValueError`` with the line if it is invalid."""
    import tomllib  # noqa: PLC0415 - takes 5 ms, and most programs have no file

    with open(name, "rb") as file:  # noqa: PTH123 - messages show the path as it was given
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"{name}: the file must be at most {FILE_BYTES_MAX} bytes long, got more")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name}:{line}: text must be UTF-8, got byte {data[error.start]:#04x}") from None
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise ValueError(_syntax_error(name, text, str(error))) from None
    except RecursionError:
        raise ValueError(_TOO_DEEP.format(name)) from None
    if _nesting_depth(values) > DEPTH_MAX:
        raise ValueError(_TOO_DEEP.format(name))
    return TomlDocument(name, values, key_lines(text))


def _nesting_depth(values: dict[str, Any]) -> int:
    """Return how deep tables and arrays are nested, at most one more than allowed.

    Python cannot compare or print values that are nested a thousand times.
    """
    level: list[Any] = [values]
    for depth in range(DEPTH_MAX + 1):
        inside = (each.values() if isinstance(each, dict) else each for each in level)
        level = [value for values in inside for value in values if isinstance(value, dict | list)]
        if not level:
            return depth
    return DEPTH_MAX + 1


def _syntax_error(name: str, text: str, error: str) -> str:
    """Return the message of the TOML parser with the line in front, as in all other messages."""
    match = _POSITION.fullmatch(error)
    if match:
        return f"{name}:{match['line']}: {match['problem']} (column {match['column']})"
    if error.endswith("(at end of document)"):
        return f"{name}:{text.rstrip().count(chr(10)) + 1}: {error}"
    return f"{name}: {error}"
