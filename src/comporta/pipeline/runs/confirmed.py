"""Which items of a source are done: all below a mark, and some above it. Pure: no file, no clock.

Workers end in any order, so what is done has gaps. One mark and a few ranges say all of it, however long the
source is, as long as nobody runs too far ahead of the slowest: that is the window's business.
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
"""The first position of a row of them, and the one after the last."""


class Confirmed:
    """A set of positions from 0 on, that takes room only for what is out of order."""

    __slots__ = ("_above", "low")

    def __init__(self, low: int = 0, above: Iterable[Range] = ()) -> None:
        self.low = low
        self._above: set[int] = set()
        for first, after in above:
            for position in range(first, after):
                self.add(position)

    def __contains__(self, position: int) -> bool:
        return position < self.low or position in self._above

    def __len__(self) -> int:
        return self.low + len(self._above)

    def add(self, position: int) -> None:
        """Note that one is done; twice is once."""
        if position > self.low:
            self._above.add(position)
        elif position == self.low:
            self.low += 1
            while self.low in self._above:
                self._above.remove(self.low)
                self.low += 1

    def copy(self) -> Confirmed:
        """Return what is done now, for whoever writes it down meanwhile."""
        copied = Confirmed(self.low)
        copied._above = self._above.copy()
        return copied

    def ranges(self) -> list[Range]:
        """Return what is done above the mark, in order."""
        found: list[Range] = []
        for position in sorted(self._above):
            if found and found[-1][1] == position:
                found[-1] = (found[-1][0], position + 1)
            else:
                found.append((position, position + 1))
        return found
