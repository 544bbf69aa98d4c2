"""Which items of a source are done: all below a watermark, and some above it. Pure: no file, no clock.

Items finish in any order, so the done ones have gaps. One number and a few ranges describe all of them,
however long the source is, as long as no item runs too far ahead of the slowest; the window of a run ensures
that.
"""

from __future__ import annotations

from collections.abc import Iterable

Range = tuple[int, int]
"""A first position, and the one after the last."""


class ConfirmedOffsets:
    """A set of positions from 0; it takes memory only for those that are out of order."""

    __slots__ = ("_above", "low_watermark")

    def __init__(self, low: int = 0, above: Iterable[Range] = ()) -> None:
        self.low_watermark = low
        self._above: set[int] = set()
        for first, after in above:
            for position in range(first, after):
                self.add(position)

    def __contains__(self, position: int) -> bool:
        return position < self.low_watermark or position in self._above

    def __len__(self) -> int:
        return self.low_watermark + len(self._above)

    def add(self, position: int) -> None:
        """Add a position; adding it again changes nothing."""
        if position > self.low_watermark:
            self._above.add(position)
        elif position == self.low_watermark:
            self.low_watermark += 1
            while self.low_watermark in self._above:
                self._above.remove(self.low_watermark)
                self.low_watermark += 1

    def copy(self) -> ConfirmedOffsets:
        """Return a copy, to be saved while more are added."""
        copied = ConfirmedOffsets(self.low_watermark)
        copied._above = self._above.copy()
        return copied

    def ranges(self) -> list[Range]:
        """Return the done positions above the watermark as ranges, in order."""
        ranges: list[Range] = []
        for position in sorted(self._above):
            if ranges and ranges[-1][1] == position:
                ranges[-1] = (ranges[-1][0], position + 1)
            else:
                ranges.append((position, position + 1))
        return ranges
