"""What a field may hold: how a value is judged, and how the text of a variable becomes one.

A kind knows nothing of who uses the field. It says what is allowed in the words of an error message; what
else may be wrong with a value is found by whoever builds something from it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

_LARGEST = sys.float_info.max
_NO_PORT = re.compile(r"://:(?!\d+(?:[/?]|$))[^/?]*")  # a password without the @ that should end it
_PASSWORD = re.compile(r"(?<=[?&])(\w{0,40}pass\w{0,40})=[^&]*")


class Kind(Protocol):
    """Judges the values of a field."""

    def wrong(self, value: Any) -> str | None:
        """Return what is allowed if the value is not, as it follows "must be"."""

    def read(self, text: str) -> Any:
        """Return the value that a variable means; what cannot be read comes back as it is, to be judged."""


@dataclass(frozen=True)
class Text:
    """Text that somebody else can read."""

    what: str

    def wrong(self, value: Any) -> str | None:
        """Judge that it is text, and no URL: somebody else would show it, password and all."""
        return None if isinstance(value, str) and "://" not in value else self.what

    def read(self, text: str) -> str:
        """Return the text: ``5`` may be a name."""
        return text


@dataclass(frozen=True)
class Url:
    """An address that begins in one of a few ways; ``what`` is an example, ``other`` one of another way."""

    what: str
    schemes: tuple[str, ...]
    other: str | None = None

    def wrong(self, value: Any) -> str | None:
        """Judge its beginning only: whoever opens it judges the rest."""
        if isinstance(value, str) and value.partition("://")[0] in self.schemes and "://" in value:
            return None
        return f"a URL such as {self.what!r}" + (f" or {self.other!r}" if self.other else "")

    def read(self, text: str) -> str:
        """Return the text."""
        return text


@dataclass(frozen=True)
class Texts:
    """A list of texts; in a variable they stand between commas."""

    what: str

    def wrong(self, value: Any) -> str | None:
        """Judge that all of it is text."""
        fits = isinstance(value, list | tuple) and all(isinstance(one, str) and one for one in value)
        return None if fits else self.what

    def read(self, text: str) -> list[str]:
        """Return what stands between the commas."""
        return [one.strip() for one in text.split(",")]


@dataclass(frozen=True)
class Secret:
    """Something that no message may show; too short a one could be guessed."""

    least: int = 16

    def wrong(self, value: Any) -> str | None:
        """Judge that it can be sent in a header, and not be guessed."""
        fits = isinstance(value, str) and len(value) >= self.least and value.isascii()
        plain = fits and value.isprintable() and " " not in value
        return None if plain else f"at least {self.least} ASCII characters without a space"

    def read(self, text: str) -> str:
        """Return the text."""
        return text


@dataclass(frozen=True)
class Number:
    """A number, with ``allowed`` as the words for its range; without them any will do.

    ``off``: ``false`` stands for none at all, since TOML has no word for that.
    """

    what: str
    allowed: str = ""
    least: float = -_LARGEST
    above: float = -math.inf
    most: float = _LARGEST
    whole: bool = False
    off: bool = False

    def wrong(self, value: Any) -> str | None:
        """Judge first what it is, then its range."""
        if self.off and value is False:
            return None
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return f"{self.what} or false" if self.off else self.what
        if not self.allowed:
            return None
        if not -_LARGEST <= value <= _LARGEST:  # true for nan, too
            return "finite"
        fits = value > self.above and self.least <= value <= self.most
        return None if fits else self.allowed

    def read(self, text: str) -> Any:
        """Return a number or a truth."""
        return scalar(text)


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    names: tuple[str, ...]

    def wrong(self, value: Any) -> str | None:
        """Judge that it is one of them."""
        return None if value in self.names else f"one of {listed(self.names)}"

    def read(self, text: str) -> str:
        """Return the text."""
        return text


@dataclass(frozen=True)
class Either:
    """Something of one of several types."""

    what: str
    types: tuple[type, ...]

    def wrong(self, value: Any) -> str | None:
        """Judge its type."""
        return None if isinstance(value, self.types) else self.what

    def read(self, text: str) -> Any:
        """Return a truth, a number where one may be, else the text."""
        value = scalar(text)
        return value if isinstance(value, bool) or float in self.types else text


@dataclass(frozen=True)
class Spread:
    """How waits are spread: by the name of a way, or from so many to so many seconds."""

    names: tuple[str, ...]

    def wrong(self, value: Any) -> str | None:
        """Judge names and pairs."""
        if isinstance(value, str):
            fits = value in self.names
        else:
            fits = isinstance(value, list | tuple) and len(value) == 2 and _rising(*value)
        return None if fits else f"one of {listed(self.names)}, or two numbers of seconds such as [0, 0.5]"

    def read(self, text: str) -> Any:
        """Return the pair of ``0, 0.5`` or ``[0, 0.5]``."""
        parts = text.strip(" []").split(",")
        return [scalar(part) for part in parts] if len(parts) == 2 else text


def _rising(least: Any, most: Any) -> bool:
    number = Number("a number", "at least 0", least=0)
    return number.wrong(least) is None and number.wrong(most) is None and least <= most


def scalar(text: str) -> Any:
    """Return a text as the number or truth it shows, else as it is."""
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def listed(names: Iterable[str]) -> str:
    """Return names for a message."""
    return ", ".join(map(repr, names)) or "none"


def shown(value: Any, chars_max: int = 100) -> str:
    """Return a value for a message: of bounded length, and nothing in it that could be a password."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits; tables in tables in tables
        text = f"an oversized {type(value).__name__}"
    return hidden(text)[:chars_max]


def said(kind: Kind, value: Any) -> str:
    """Return for a message the value that somebody gave for a field of some kind."""
    return "something else" if isinstance(kind, Secret) else shown(value)


def hidden(text: str) -> str:
    """Return a text without the user and password of a URL, in time that grows no faster than its length."""
    start, end = text.find("://"), text.rfind("@")
    if 0 <= start < end:
        text = f"{text[:start]}://***@{text[end + 1 :]}"
    return _PASSWORD.sub(r"\1=***", _NO_PORT.sub("://***@", text))
