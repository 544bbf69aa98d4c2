"""``SettingsTable``: a validated table of settings that knows where each of its values was written.

The base class of all ``...Settings`` classes. It does not know what a setting is for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from comporta.settings.field_types import FieldType, NumberField, received_value

_FIRST_WORD = re.compile(r"\w+")
_TYPE = "type"


def setting(field_type: FieldType, default: Any = None) -> Any:
    """Return a dataclass field that holds a setting of this type."""
    return field(default=default, metadata={_TYPE: field_type})


class Origin(NamedTuple):
    """Where a value was written: ``pncp.toml:14`` and its table, or the name of a variable."""

    where: str
    table: str = ""

    def __str__(self) -> str:
        """Return the start of an error message."""
        return f"{self.where}: {self.table}" if self.table else self.where


@dataclass(frozen=True, kw_only=True)
class SettingsTable:
    """A table of settings: ``origin`` is where the table was written, ``origins`` where each field was."""

    origin: str = field(default="settings", compare=False)
    origins: Mapping[str, Origin] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Validate each field."""
        for each in setting_fields(type(self)):
            value = getattr(self, each.name)
            if value is None and each.default is None:
                continue
            requirement = type_of(each).unmet_requirement(value)
            if requirement:
                received = received_value(type_of(each), value)
                raise self.field_error(each.name, f"must be {requirement}, got {received}")

    def origin_of(self, name: str) -> str:
        """Return where a field was written, as the start of a message; else where the table was."""
        return str(self.origins.get(name, self.origin))

    def field_error(self, name: str, problem: str) -> ValueError:
        """Return an error about a field that names the place where it was written."""
        return ValueError(f"{self.origin_of(name)}: {name} {problem}")

    def error_with_origin(self, error: Exception) -> ValueError:
        """Return an error raised by code that uses these settings, with the place added.

        The first word of its message is the name of the field, which gives the line.
        """
        first = _FIRST_WORD.match(str(error))
        return ValueError(f"{self.origin_of(first[0] if first else '')}: {error}")

    def keyword_arguments(self) -> dict[str, Any]:
        """Return the fields that are set, as keyword arguments; ``false`` for a number becomes ``None``."""
        values = {each.name: (getattr(self, each.name), type_of(each)) for each in setting_fields(type(self))}
        return {
            name: None if value is False and isinstance(field_type, NumberField) else value
            for name, (value, field_type) in values.items()
            if value is not None
        }


def setting_fields(table: type[SettingsTable]) -> list[Field[Any]]:
    """Return the fields of a table that a file may contain."""
    return [each for each in fields(table) if _TYPE in each.metadata]


def setting_names(table: type[SettingsTable]) -> tuple[str, ...]:
    """Return the names of these fields."""
    return tuple(each.name for each in setting_fields(table))


def type_of(each: Field[Any]) -> FieldType:
    """Return the type of a field that ``setting`` created."""
    field_type: FieldType = each.metadata[_TYPE]
    return field_type


def type_of_setting(table: type[SettingsTable], name: str) -> FieldType:
    """Return the type of the field with this name."""
    return next(type_of(each) for each in setting_fields(table) if each.name == name)
