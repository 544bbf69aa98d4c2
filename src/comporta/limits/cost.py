"""The cost of a request: one number for every limit, or a number for each named limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from comporta.limits.strategies.base import EXACT_INT_MAX
from comporta.validators import require_integer

Cost = int | Mapping[str, int]
"""A number for every limit, or numbers by name, such as ``{"requests": 1, "tokens": 1200}``."""


def cost_amounts(field: str, cost: Cost, names: Sequence[str], defaults: Sequence[int]) -> list[int]:
    """Return what each limit is charged; a limit that a mapping leaves out gets its default.

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
