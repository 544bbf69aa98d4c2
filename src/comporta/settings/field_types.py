"""The types of settings: what a field may hold, and how the text of an environment variable is parsed.

A type knows nothing about the purpose of the field. It names what is allowed in the words of
:mod:`comporta.validators`; the code that uses the setting checks everything else. This module also renders
values for messages, without the passwords in them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from comporta.validators import range_text

_FLOAT_MAX = sys.float_info.max
_NO_PORT = re.compile(r"://:(?!\d+(?:[/?]|$))[^/?]*")  # a password without the @ that should follow it
_PASSWORD = re.compile(r"(?<=[?&])(\w{0,40}pass\w{0,40})=[^&]*")


class FieldType(Protocol):
    """Validates the values of a field, and parses them from text."""

    def unmet_requirement(self, value: Any) -> str | None:
        """Return what is allowed, worded to follow "must be", if the value is not; else ``None``."""

    def parse(self, text: str) -> Any:
        """Return the value of a variable; text that cannot be parsed is returned as it is."""


@dataclass(frozen=True)
class TextField:
    """Text that is not a URL; ``description`` says what it should be."""

    description: str

    def unmet_requirement(self, value: Any) -> str | None:
        """Require text. A URL may hold a password, which messages about the text would show."""
        return None if isinstance(value, str) and "://" not in value else self.description

    def parse(self, text: str) -> str:
        """Return the text: ``5`` may be a name."""
        return text


@dataclass(frozen=True)
class UrlField:
    """A URL with one of these schemes; ``example`` and ``other_example`` are for messages."""

    example: str
    schemes: tuple[str, ...]
    other_example: str | None = None

    def unmet_requirement(self, value: Any) -> str | None:
        """Require a known scheme only: the code that opens the URL checks the rest."""
        if isinstance(value, str) and value.partition("://")[0] in self.schemes and "://" in value:
            return None
        return f"a URL such as {self.example!r}" + (
            f" or {self.other_example!r}" if self.other_example else ""
        )

    def parse(self, text: str) -> str:
        """Return the text."""
        return text


@dataclass(frozen=True)
class TextListField:
    """A list of texts; in a variable they are separated by commas."""

    description: str

    def unmet_requirement(self, value: Any) -> str | None:
        """Require a list of texts that are not empty."""
        is_valid = isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value)
        return None if is_valid else self.description

    def parse(self, text: str) -> list[str]:
        """Return the parts between the commas."""
        return [part.strip() for part in text.split(",")]


@dataclass(frozen=True)
class TextTableField:
    """A table from texts to texts; a variable cannot set it."""

    description: str

    def unmet_requirement(self, value: Any) -> str | None:
        """Require texts that are not empty."""
        is_table = isinstance(value, Mapping) and all(value)
        is_valid = is_table and all(isinstance(each, str) and each for each in value.values())
        return None if is_valid else self.description

    def parse(self, text: str) -> str:
        """Return the text, which is not a table."""
        return text


@dataclass(frozen=True)
class SecretField:
    """A token that no message may show, and that is too long to guess."""

    chars_min: int = 16

    def unmet_requirement(self, value: Any) -> str | None:
        """Require text that can be sent in a header and cannot be guessed."""
        is_long = isinstance(value, str) and len(value) >= self.chars_min and value.isascii()
        is_valid = is_long and value.isprintable() and " " not in value
        return None if is_valid else f"at least {self.chars_min} ASCII characters without a space"

    def parse(self, text: str) -> str:
        """Return the text."""
        return text


@dataclass(frozen=True)
class NumberField:
    """A number in a range; without bounds, any number.

    ``above`` is a lower bound that is itself not allowed. ``unit`` ("seconds") is added to the messages.
    ``allows_false``: ``false`` stands for no value, because TOML has no null.
    """

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    unit: str = ""
    is_integer: bool = False
    allows_false: bool = False

    def unmet_requirement(self, value: Any) -> str | None:
        """Require the type first, then the range."""
        if self.allows_false and value is False:
            return None
        if isinstance(value, bool) or not isinstance(value, int if self.is_integer else int | float):
            return f"{self._description} or false" if self.allows_false else self._description
        if self.minimum is self.maximum is self.above is None:
            return None
        if not -_FLOAT_MAX <= value <= _FLOAT_MAX:  # also true for nan
            return "finite"
        return None if self._is_in_range(value) else self._range_text

    def parse(self, text: str) -> Any:
        """Return a number or a boolean."""
        return parse_scalar(text)

    @property
    def _description(self) -> str:
        if self.is_integer:
            return "a whole number"
        return f"a number of {self.unit}" if self.unit else "a number"

    @property
    def _range_text(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.above is None:
            return f"{range_text(self.minimum, self.maximum)}{unit}"
        upper = "" if self.maximum is None else f" and {range_text(None, self.maximum)}"
        return f"above {self.above:g}{upper}{unit}"

    def _is_in_range(self, value: float) -> bool:
        is_too_small = (self.minimum is not None and value < self.minimum) or (
            self.above is not None and value <= self.above
        )
        return not is_too_small and (self.maximum is None or value <= self.maximum)


@dataclass(frozen=True)
class ChoiceField:
    """One of several words."""

    choices: tuple[str, ...]

    def unmet_requirement(self, value: Any) -> str | None:
        """Require one of the words."""
        return None if value in self.choices else f"one of {quoted_list(self.choices)}"

    def parse(self, text: str) -> str:
        """Return the text."""
        return text


@dataclass(frozen=True)
class UnionField:
    """A value of one of several types."""

    description: str
    types: tuple[type, ...]

    def unmet_requirement(self, value: Any) -> str | None:
        """Require one of the types."""
        return None if isinstance(value, self.types) else self.description

    def parse(self, text: str) -> Any:
        """Return a boolean, a number if one is allowed, else the text."""
        value = parse_scalar(text)
        return value if isinstance(value, bool) or float in self.types else text


@dataclass(frozen=True)
class FlagField:
    """A boolean; in a variable, ``1`` and ``0`` as well."""

    def unmet_requirement(self, value: Any) -> str | None:
        """Require a boolean."""
        return None if isinstance(value, bool) else "true or false"

    def parse(self, text: str) -> Any:
        """Return the boolean, else the text."""
        return {"1": True, "0": False, "true": True, "false": False}.get(text.strip().lower(), text)


@dataclass(frozen=True)
class JitterField:
    """The jitter of retries: the name of a mode, or a range of seconds."""

    modes: tuple[str, ...]

    def unmet_requirement(self, value: Any) -> str | None:
        """Require a mode or a pair of seconds in order."""
        if isinstance(value, str):
            is_valid = value in self.modes
        else:
            is_valid = isinstance(value, list | tuple) and len(value) == 2 and _is_range(*value)
        if is_valid:
            return None
        return f"one of {quoted_list(self.modes)}, or two numbers of seconds such as [0, 0.5]"

    def parse(self, text: str) -> Any:
        """Return the pair of ``0, 0.5`` or ``[0, 0.5]``."""
        parts = text.strip(" []").split(",")
        return [parse_scalar(part) for part in parts] if len(parts) == 2 else text


def _is_range(low: Any, high: Any) -> bool:
    number = NumberField(minimum=0)
    return number.unmet_requirement(low) is None and number.unmet_requirement(high) is None and low <= high


def parse_scalar(text: str) -> Any:
    """Return the number or the boolean that a text represents, else the text."""
    for number_type in (int, float):
        try:
            return number_type(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.strip().lower(), text)


def quoted_list(names: Iterable[str]) -> str:
    """Return names in quotes, separated by commas; ``none`` if there are none."""
    return ", ".join(map(repr, names)) or "none"


def short_repr(value: Any, chars_max: int = 100) -> str:
    """Return a value for a message: of bounded length, and without anything that could be a password."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number with thousands of digits, or deeply nested tables
        text = f"an oversized {type(value).__name__}"
    return without_credentials(text)[:chars_max]


def received_value(field_type: FieldType, value: Any) -> str:
    """Return the value of a field for a message; never that of a secret."""
    return "a hidden value" if isinstance(field_type, SecretField) else short_repr(value)


def without_credentials(text: str) -> str:
    """Return a text without the user and the password of a URL, in time linear in its length."""
    start, end = text.find("://"), text.rfind("@")
    if 0 <= start < end:
        text = f"{text[:start]}://***@{text[end + 1 :]}"
    return _PASSWORD.sub(r"\1=***", _NO_PORT.sub("://***@", text))
