"""Addresses with columns in them: ``https://host/companies/{cnpj}?year={year}``.

What stands in a column comes from a file that somebody else wrote. It is put in so that it can be nothing but
the value of its place: it never changes the host, climbs out of a path or adds a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

LINE = "line"
"""What the text of a line is called, where an item is no object with names of its own."""

_CLIMBS = ("", ".", "..")


class ColumnError(ValueError):
    """An item does not have what the address needs; it says which column."""


class Address:
    """An address to be completed for each item."""

    def __init__(self, text: str) -> None:
        self._parts = [(before, _column(*rest)) for before, *rest in _parsed(text)]
        self.columns = [column for _, column in self._parts if column is not None]
        plain = "".join(f"{before}{'' if column is None else 'x'}" for before, column in self._parts)
        self.host = _checked_host(text, plain)

    def of(self, item: Any) -> str:
        """Return the address for an item."""
        fields = fields_of(item)
        return "".join(
            before if column is None else before + _value(fields, column) for before, column in self._parts
        )


def fields_of(item: Any) -> Mapping[str, Any]:
    """Return the columns of an item; what is no object has one, called ``line``."""
    return item if isinstance(item, Mapping) else {LINE: item}


def _parsed(text: str) -> list[tuple[Any, ...]]:
    try:
        return list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(
            f"url must have its columns in braces, such as {{id}}: {error}, got {text!r:.200}"
        ) from None


def _column(name: str | None, form: str | None, conversion: str | None) -> str | None:
    if name == "" or form or conversion:
        raise ValueError(f"url must have names of columns in its braces, got {{{name}}}")
    return name


def _checked_host(text: str, plain: str) -> str:
    """Return the host, which is the same for all items."""
    try:
        split = urlsplit(plain)
        host = split.hostname
        split.port  # noqa: B018 - looking at it checks it
    except ValueError:
        host = None
    if not host or split.scheme not in ("http", "https"):
        begins = "http:// or https://, a host and, if any, a port of 0 to 65535"
        raise ValueError(f"url must begin with {begins}, got {text!r:.200}")
    if not text[len(split.scheme) :].startswith(f"://{split.netloc}"):  # HTTP is http
        raise ValueError(f"url must have its columns after the host, got {text!r:.200}")
    return host


def _value(fields: Mapping[str, Any], column: str) -> str:
    if column not in fields:
        known = ", ".join(map(repr, list(fields)[:20]))
        raise ColumnError(f"there is no column {column!r}, only {known}"[:500])
    value = fields[column]
    if value is None or isinstance(value, dict | list):
        raise ColumnError(
            f"column {column!r} must be a text or a number to stand in a URL, got {value!r:.100}"
        )
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    if text.strip() in _CLIMBS:
        raise ColumnError(f"column {column!r} must not be empty, '.' or '..' in a URL, got {text!r}")
    return quote(text, safe="")
