"""The object that ``async with limiter.reserve(key, cost) as budget`` provides: a granted estimate.

A reservation only holds values; the limiter settles it when its block ends without an exception.
"""

from __future__ import annotations

from collections.abc import Sequence

from comporta.limits.cost import Cost, cost_amounts


class Reservation:
    """An estimate that a limit granted; set ``used`` to what the call really cost.

    The limit is settled when the block ends. Without ``used``, after an exception, and if the process is
    killed, the estimate stays spent. For a group, ``used`` is one number for every limit, or a number for
    each name; a limit that is left out keeps its estimate.
    """

    __slots__ = ("_granted_at", "_names", "_reserved", "_used", "reserved_amounts")

    def __init__(
        self, reserved: Cost, granted_at: float, names: Sequence[str], amounts: Sequence[int]
    ) -> None:
        self._reserved = reserved
        self._granted_at = granted_at
        self._names = names
        self._used: Cost | None = None
        self.reserved_amounts = amounts

    def __repr__(self) -> str:
        return f"<Reservation of {self._reserved}, used {self._used}>"

    @property
    def reserved(self) -> Cost:
        """The estimate, which the limit granted."""
        return self._reserved

    @property
    def granted_at(self) -> float:
        """When the limit granted it, by ``time.monotonic()``."""
        return self._granted_at

    @property
    def used(self) -> Cost | None:
        """What the call really cost; ``None`` while that is unknown."""
        return self._used

    @used.setter
    def used(self, used: Cost) -> None:
        cost_amounts("used", used, self._names, self.reserved_amounts)
        self._used = used

    @property
    def used_amounts(self) -> Sequence[int]:
        """The final charge of each limit."""
        if self._used is None:
            return self.reserved_amounts
        return cost_amounts("used", self._used, self._names, self.reserved_amounts)
