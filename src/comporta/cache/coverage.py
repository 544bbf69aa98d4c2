"""What part of what was asked for an answer holds: "7 of 9".

Pure. The names are those of the table's column, so that whoever reads it knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

PARTS_MAX = 1000
_FIELDS = ("succeeded_ufs", "failed_ufs", "total_requested")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The parts that an answer holds, those it lacks, and how many were asked for."""

    succeeded_ufs: tuple[str, ...]
    failed_ufs: tuple[str, ...] = ()
    total_requested: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "succeeded_ufs", _parts("succeeded_ufs", self.succeeded_ufs))
        object.__setattr__(self, "failed_ufs", _parts("failed_ufs", self.failed_ufs))
        both = set(self.succeeded_ufs) & set(self.failed_ufs)
        if both:
            raise ValueError(f"coverage.failed_ufs must not hold what succeeded, got {min(both)!r:.50}")
        known = len(self.succeeded_ufs) + len(self.failed_ufs)
        if self.total_requested == -1:
            object.__setattr__(self, "total_requested", known)
        total: object = self.total_requested
        if isinstance(total, bool) or not isinstance(total, int):
            raise TypeError(f"coverage.total_requested must be an int, got {total!r:.50}")
        if not known <= total <= PARTS_MAX:
            raise ValueError(f"coverage.total_requested must be {known} to {PARTS_MAX}, got {total}")

    @classmethod
    def of(cls, given: Coverage | Mapping[str, Any] | None) -> Coverage | None:
        """Read what a caller or the table has; a field nobody knows is a mistake."""
        if given is None or isinstance(given, Coverage):
            return given
        if not isinstance(given, Mapping):
            raise TypeError(f"coverage must be a mapping with {', '.join(_FIELDS)}, got {given!r:.50}")
        for field, value in given.items():
            if field not in _FIELDS:
                raise ValueError(
                    f"coverage has {', '.join(_FIELDS)} and nothing else, got {field!r:.50}: {value!r:.50}"
                )
        if "succeeded_ufs" not in given:
            raise ValueError(f"coverage.succeeded_ufs must be there, got {dict(given)!r:.100}")
        return cls(**given)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return len(self.succeeded_ufs) == self.total_requested

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table keeps it."""
        return {
            "succeeded_ufs": list(self.succeeded_ufs),
            "failed_ufs": list(self.failed_ufs),
            "total_requested": self.total_requested,
        }

    def joined(self, more: Coverage) -> Self:
        """Return what is covered after what was missing was asked for once more."""
        succeeded = tuple(dict.fromkeys((*self.succeeded_ufs, *more.succeeded_ufs)))
        failed = tuple(
            uf for uf in dict.fromkeys((*self.failed_ufs, *more.failed_ufs)) if uf not in succeeded
        )
        total = max(self.total_requested, len(succeeded) + len(failed))
        return type(self)(succeeded, failed, total)

    def __str__(self) -> str:
        return f"{len(self.succeeded_ufs)} of {self.total_requested}"


def _parts(field: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"coverage.{field} must be a list of names, got {given!r:.50}")
    parts = tuple(given)
    for part in parts:
        if not isinstance(part, str) or not part:
            raise TypeError(f"coverage.{field} must hold names, got {part!r:.50}")
    if len(set(parts)) != len(parts):
        raise ValueError(f"coverage.{field} must name each part once, got {parts!r:.100}")
    return parts
