"""What may stand in a cell of a file that people open in a spreadsheet.

Text from outside must never become a formula there. Where a target keeps text and numbers apart (a workbook,
Google's ``RAW``) it is enough to say which is which: :func:`cell`. A CSV file keeps nothing apart, and every
program guesses anew: :func:`guarded` puts an apostrophe where such a guess could begin.

Pure; knows no file and no sink.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time
from decimal import Decimal
from string import ascii_letters, digits
from typing import Any, Final

Cell = str | int | float | bool

WHOLE_MAX: Final = 10**15
"""Spreadsheets keep 15 digits of a number; a longer one is an identifier, and keeps all of them as text."""

_OPERATORS = "=+\\-@\uff1d\uff0b\uff0d\uff20"
# what programs skip, or do not show, in front of an operator: spaces of all kinds, quotes, zero widths
_SKIPPED = '\\s\\x00-\\x1f\\x7f"\u200b-\u200f\u2060\ufeff'
# other locales separate columns by these, and see the quotes around a field only at the start of a column
_SEPARATORS = ";|\\t\\r\\n"

_STARTS = re.compile(rf"[\t\r\n]|[{_SKIPPED}]*[{_OPERATORS}]")
_SEPARATOR = re.compile(f"[{_SEPARATORS}]")
_STARTS_LATER = re.compile(rf"[{_SEPARATORS}](?=[{_SKIPPED}]*[{_OPERATORS}])")
_HARMLESS: Final = frozenset({"", *ascii_letters, *digits})
"""Most texts begin with one of these, and need no second look unless there is a separator in them."""


def cell(value: Any) -> Cell:
    """Return a value as a cell of a target that keeps text and numbers apart; nothing is an empty text."""
    kind = type(value)
    if kind is str:
        return clean(value)
    if kind is bool:
        return bool(value)
    if kind is int:
        return int(value) if -WHOLE_MAX < value < WHOLE_MAX else str(value)
    if kind is float:
        return float(value) if value - value == 0 else str(value)  # what is not finite is no number there
    if isinstance(value, int | float):  # such as a member of an enumeration
        return cell(int(value) if isinstance(value, int) else float(value))
    return "" if value is None else clean(as_text(value))


def guarded(value: Any) -> Cell:
    """Return a value as a cell of a target that takes everything for text and guesses: a CSV file."""
    if type(value) is str and value[:1] in _HARMLESS and value.isascii() and not _SEPARATOR.search(value):
        return value
    kept = cell(value)
    if type(kept) is not str or (isinstance(value, Decimal) and value.is_finite()):
        return kept
    if _STARTS.match(kept):
        kept = "'" + kept
    return _STARTS_LATER.sub(r"\g<0>'", kept)


def clean(text: str) -> str:
    """Return a text that can be written as UTF-8: half of a surrogate pair is no character."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def as_text(value: Any) -> str:
    """Return what is no number and no text as one, in the form in which others read it."""
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
    from comporta.pipeline.strict_json import dumped  # noqa: PLC0415 - most rows hold none

    try:
        return dumped(value, ensure_ascii=False, default=as_text)
    except (TypeError, ValueError, RecursionError):  # it has keys that are no texts, or holds itself
        return str(value)
