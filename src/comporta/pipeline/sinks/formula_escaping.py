"""Cells of files that people open in a spreadsheet program.

Text from outside must never become a formula there. For a format that distinguishes text from numbers (a
workbook, Google's ``RAW``), :func:`cell` makes values one or the other. A CSV file does not distinguish them,
and each program guesses: :func:`csv_cell` adds an apostrophe where a program could see a formula.

Pure; this module knows nothing about files and sinks.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time
from decimal import Decimal
from string import ascii_letters, digits
from typing import Any, Final

Cell = str | int | float | bool

INTEGER_MAX: Final = 10**15
"""Spreadsheets store 15 digits of a number; a longer one is an identifier and is kept complete as text."""

_OPERATORS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
# characters that programs skip or hide before an operator: spaces of all kinds, quotes, zero widths
_SKIPPED = '\\s\\x00-\\x1f\\x7f"\u200b-\u200f\u2060\ufeff'
# other locales use these as separators, and see the quotes of a field only at the start of a column
_SEPARATORS = ";|\\t\\r\\n"

_FORMULA_START = re.compile(rf"[\t\r\n]|[{_SKIPPED}]*[{_OPERATORS}]")
_SEPARATOR = re.compile(f"[{_SEPARATORS}]")
_SEPARATOR_BEFORE_FORMULA = re.compile(rf"[{_SEPARATORS}](?=[{_SKIPPED}]*[{_OPERATORS}])")
_SAFE_FIRST_CHARS: Final = frozenset({"", *ascii_letters, *digits})
"""Text that starts with one of these is safe unless it contains a separator."""


def cell(value: Any) -> Cell:
    """Return a value as a cell of a format that distinguishes text from numbers; ``None`` is ``""``."""
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is bool:
        return bool(value)
    if kind is int:
        return int(value) if -INTEGER_MAX < value < INTEGER_MAX else str(value)
    if kind is float:
        return float(value) if value - value == 0 else str(value)  # infinities and NaN are text there
    if isinstance(value, int | float):  # such as a member of an enum
        return cell(int(value) if isinstance(value, int) else float(value))
    return "" if value is None else clean_text(as_text(value))


def csv_cell(value: Any) -> Cell:
    """Return a value as a cell of a CSV file, whose readers guess what is a number or a formula."""
    if (
        type(value) is str
        and value[:1] in _SAFE_FIRST_CHARS
        and value.isascii()
        and not _SEPARATOR.search(value)
    ):
        return value
    content = cell(value)
    if type(content) is not str or (isinstance(value, Decimal) and value.is_finite()):
        return content
    if _FORMULA_START.match(content):
        content = "'" + content
    return _SEPARATOR_BEFORE_FORMULA.sub(r"\g<0>'", content)


def clean_text(text: str) -> str:
    """Return a text that can be encoded as UTF-8, without unpaired surrogates."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def as_text(value: Any) -> str:
    """Return a value as text: dates in ISO form, lists and dictionaries as JSON."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, dict | list | tuple):
        return _as_json(value)
    if isinstance(value, int | float | Decimal):
        return format(value)
    return str(value)


def _as_json(value: Any) -> str:
    from comporta.pipeline.strict_json import dump_json  # noqa: PLC0415 - most rows do not need it

    try:
        return dump_json(value, ensure_ascii=False, default=as_text)
    except (TypeError, ValueError, RecursionError):  # a key that is not a string, or a cycle
        return str(value)
