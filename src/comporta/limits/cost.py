"""The cost of a request: one number for every limit, or a number for each named limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import add, sub

from comporta.limits.strategies.base import EXACT_INT_MAX
from comporta.validators import require_integer

Cost = int | Mapping[str, int]
"""A number for every limit, or numbers by name, such as ``{"requests": 1, "tokens": 1200}``."""


class GroupUnits:
    """Units of each limit of a group, which add up like a number."""

    __slots__ = ("amounts",)

    def __init__(self, amounts: Iterable[int]) -> None:
        self.amounts = tuple(amounts)

    def __add__(self, other: GroupUnits | int) -> GroupUnits:
        """Return the sum of each limit; the other summand may be the number 0."""
        if isinstance(other, int):
            return self
        return GroupUnits(map(add, self.amounts, other.amounts))

    __radd__ = __add__

    def __sub__(self, other: GroupUnits) -> GroupUnits:
        """Return the difference of each limit."""
        return GroupUnits(map(sub, self.amounts, other.amounts))


def cost_amounts(field: str, cost: Cost, names: Sequence[str], defaults: Sequence[int]) -> list[int]:
    """Return the charge of each limit; a limit that a mapping leaves out gets its default.

    ``field`` is the argument that the caller passed, for error messages.
    """
    if not isinstance(cost, Mapping):
        return [require_integer(field, cost, 0, EXACT_INT_MAX)] * len(names)
    for name in cost:
        if name not in names:
            known = ", ".join(map(repr, names))
            raise ValueError(f"{field} must name limits among {known}, got {name!r:.100}")
    return [
        require_integer(f"{field}[{name!r}]", cost[name], 0, EXACT_INT_MAX) if name in cost else default
        for name, default in zip(names, defaults, strict=True)
    ]
