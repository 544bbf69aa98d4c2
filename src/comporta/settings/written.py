"""A table as it was written: its fields, each of some kind, and where each of them was said."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, NamedTuple

from comporta.settings.kinds import Kind, Number, said

_FIRST_WORD = re.compile(r"\w+")


def of(kind: Kind, default: Any = None) -> Any:
    """Return a field that holds something of a kind."""
    return field(default=default, metadata={"kind": kind})


class Source(NamedTuple):
    """Where something was written: ``pncp.toml:14`` and its table, or the name of a variable."""

    where: str
    table: str = ""

    def __str__(self) -> str:
        """Say it as a message begins."""
        return f"{self.where}: {self.table}" if self.table else self.where


@dataclass(frozen=True, kw_only=True)
class Written:
    """A table as it was written: ``source`` is its own place, ``sources`` that of each field in it."""

    source: str = field(default="settings", compare=False)
    sources: Mapping[str, Source] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Check each field by itself."""
        for one in kinds(type(self)):
            value = getattr(self, one.name)
            if value is None and one.default is None:
                continue
            kind = one.metadata["kind"]
            allowed = kind.wrong(value)
            if allowed:
                raise self.wrong(one.name, f"must be {allowed}, got {said(kind, value)}")

    def at(self, name: str) -> str:
        """Return where a field was written, as a message begins; the table's place if it was not."""
        return str(self.sources.get(name, self.source))

    def wrong(self, name: str, what: str) -> ValueError:
        """Return the error that says what is wrong with a field, and where it was written."""
        return ValueError(f"{self.at(name)}: {name} {what}")

    def blamed(self, error: Exception) -> ValueError:
        """Return an error of whoever builds from this, with the place added.

        Messages begin with the field they are about; that finds the line.
        """
        first = _FIRST_WORD.match(str(error))
        return ValueError(f"{self.at(first[0] if first else '')}: {error}")

    def given(self) -> dict[str, Any]:
        """Return what was written, as keywords for whoever builds; ``false`` for a number is ``None``."""
        values = {one.name: (getattr(self, one.name), one.metadata["kind"]) for one in kinds(type(self))}
        return {
            name: None if value is False and isinstance(kind, Number) else value
            for name, (value, kind) in values.items()
            if value is not None
        }


def kinds(table: type[Written]) -> list[Field[Any]]:
    """Return the fields of a table that people may write."""
    return [one for one in fields(table) if "kind" in one.metadata]


def names(table: type[Written]) -> tuple[str, ...]:
    """Return the names of these fields."""
    return tuple(one.name for one in kinds(table))
