"""Which units of a request a result covers: "7 of 9".

Pure. A unit is a name that the application chooses: a state, a page, an account. The application also chooses
what units are called in stored JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from comporta.validators import require_integer

UNITS_MAX = 1000
_FIELD = re.compile(r"(?:(succeeded|failed)(?:_([a-z][a-z0-9_]{0,39}))?|total_requested)")
_UNITS = re.compile(r"(?:[a-z][a-z0-9_]{0,39})?")


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which units of a request a result covers.

    ``succeeded`` names the units that it covers and ``failed`` those that it lacks. ``total_requested``
    defaults to the number of units named. ``units`` is the plural noun in the fields of ``as_dict``: with
    ``"pages"`` they are ``succeeded_pages`` and ``failed_pages``.
    """

    succeeded: tuple[str, ...]
    failed: tuple[str, ...] = ()
    total_requested: int = -1
    units: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "succeeded", _check_units("succeeded", self.succeeded))
        object.__setattr__(self, "failed", _check_units("failed", self.failed))
        both = set(self.succeeded) & set(self.failed)
        if both:
            raise ValueError(f"coverage.failed must not name units that succeeded, got {min(both)!r:.50}")
        named = len(self.succeeded) + len(self.failed)
        if self.total_requested == -1:
            object.__setattr__(self, "total_requested", named)
        require_integer("coverage.total_requested", self.total_requested, named, UNITS_MAX)
        if type(self.units) is not str or not _UNITS.fullmatch(self.units):
            raise ValueError(f"coverage.units must be a word of a-z 0-9 _, got {self.units!r:.50}")

    @classmethod
    def parse(cls, given: Coverage | Mapping[str, Any] | None) -> Coverage | None:
        """Return the coverage in a mapping of the form that ``as_dict`` returns; ``None`` stays ``None``."""
        if given is None or isinstance(given, Coverage):
            return given
        if not isinstance(given, Mapping):
            raise TypeError(f"coverage must be a mapping with a field succeeded, got {given!r:.50}")
        fields: dict[str, Any] = {}
        words = set()
        for name, value in given.items():
            match = _FIELD.fullmatch(name) if type(name) is str else None
            if match is None:
                raise ValueError(
                    "coverage must have only the fields succeeded, failed and total_requested, "
                    f"got {name!r:.50}: {value!r:.50}"
                )
            fields[match[1] or name] = value
            words |= {match[2] or ""} if match[1] else set()
        if "succeeded" not in fields or len(words) != 1:
            raise ValueError(
                f"coverage must have a field succeeded, and one name for its units, got {dict(given)!r:.100}"
            )
        return cls(**fields, units=words.pop())

    @property
    def is_complete(self) -> bool:
        """Whether every requested unit succeeded."""
        return len(self.succeeded) == self.total_requested

    def as_dict(self) -> dict[str, Any]:
        """Return the coverage as plain data, which ``parse`` reads back."""
        suffix = f"_{self.units}" if self.units else ""
        return {
            f"succeeded{suffix}": list(self.succeeded),
            f"failed{suffix}": list(self.failed),
            "total_requested": self.total_requested,
        }

    def merge(self, more: Coverage) -> Self:
        """Return the combined coverage of this result and of a later load of its missing units."""
        succeeded = tuple(dict.fromkeys((*self.succeeded, *more.succeeded)))
        failed = tuple(unit for unit in dict.fromkeys((*self.failed, *more.failed)) if unit not in succeeded)
        total = max(self.total_requested, len(succeeded) + len(failed))
        return type(self)(succeeded, failed, total, units=self.units)

    def __str__(self) -> str:
        return f"{len(self.succeeded)} of {self.total_requested}"


def _check_units(name: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"coverage.{name} must be a list of names, got {given!r:.50}")
    units = tuple(given)
    for unit in units:
        if not isinstance(unit, str) or not unit:
            raise TypeError(f"coverage.{name} must contain only non-empty names, got {unit!r:.50}")
    if len(set(units)) != len(units):
        raise ValueError(f"coverage.{name} must name each unit once, got {units!r:.100}")
    return units
