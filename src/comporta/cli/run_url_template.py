"""URL templates with columns in braces: ``https://host/companies/{cnpj}?year={year}``.

The values come from a file that may be untrusted. They are escaped, so that a value never changes the host,
leaves its segment of the path or adds a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

LINE = "line"
"""The column name of an item that is a plain line of text."""

_PATH_SEGMENTS_FORBIDDEN = ("", ".", "..")


class ColumnError(ValueError):
    """The item lacks a column that the URL needs, or has an unusable value in it."""


class UrlTemplate:
    """A URL with columns that ``render`` fills in for each item."""

    def __init__(self, text: str) -> None:
        self._parts = [(before, _check_column(*rest)) for before, *rest in _parse_template(text)]
        self.columns = [column for _, column in self._parts if column is not None]
        plain = "".join(f"{before}{'' if column is None else 'x'}" for before, column in self._parts)
        self.host = _check_host(text, plain)

    def render(self, item: Any) -> str:
        """Return the URL for an item."""
        fields = fields_of(item)
        return "".join(
            before if column is None else before + _column_value(fields, column)
            for before, column in self._parts
        )


def fields_of(item: Any) -> Mapping[str, Any]:
    """Return the columns of an item; a plain line has one, ``line``."""
    return item if isinstance(item, Mapping) else {LINE: item}


def _parse_template(text: str) -> list[tuple[Any, ...]]:
    try:
        return list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(
            f"url must have column names in braces, such as {{id}}: {error}, got {text!r:.200}"
        ) from None


def _check_column(name: str | None, form: str | None, conversion: str | None) -> str | None:
    if name == "" or form or conversion:
        raise ValueError(f"url must have plain column names in its braces, got {{{name}}}")
    return name


def _check_host(text: str, plain: str) -> str:
    """Return the host, which must not depend on the item."""
    try:
        split = urlsplit(plain)
        host = split.hostname
        split.port  # noqa: B018 - the property raises for a wrong port
    except ValueError:
        host = None
    if not host or split.scheme not in ("http", "https"):
        expected = "http:// or https:// and a host, with a port of 0 to 65535 if any"
        raise ValueError(f"url must start with {expected}, got {text!r:.200}")
    if not text[len(split.scheme) :].startswith(
        f"://{split.netloc}"
    ):  # urlsplit lowers the case of the scheme
        raise ValueError(f"url must have its columns after the host, got {text!r:.200}")
    return host


def _column_value(fields: Mapping[str, Any], column: str) -> str:
    if column not in fields:
        available = ", ".join(map(repr, list(fields)[:20]))
        raise ColumnError(f"the item has no column {column!r}, only {available}"[:500])
    value = fields[column]
    if value is None or isinstance(value, dict | list):
        raise ColumnError(
            f"column {column!r} must be text or a number to be part of a URL, got {value!r:.100}"
        )
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    if text.strip() in _PATH_SEGMENTS_FORBIDDEN:
        raise ColumnError(f"column {column!r} must not be empty, '.' or '..' in a URL, got {text!r}")
    return quote(text, safe="")
