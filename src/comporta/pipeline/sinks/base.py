"""What a batch writer asks of the place that its batches go to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = Mapping[str, Any]
"""One row: what stands in which column."""


class Sink(Protocol):
    """A place for rows. It blocks: whoever calls it from an event loop does so in a thread of its own.

    Batches of one key are written one after another, in order; batches of different keys may come from
    different threads at the same time.
    """

    def open(self) -> None:
        """Make ready, or say why that cannot be; nothing is asked before."""

    def write(self, rows: Sequence[Row]) -> None:
        """Keep all of these, or raise: then all of them may be given again, some of them kept already."""

    def close(self) -> None:
        """Finish; nothing is asked after. Closing twice is closing once."""


class AsyncSink(Protocol):
    """The same, awaited."""

    async def open(self) -> None:
        """Make ready, or say why that cannot be."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Keep all of these, or raise."""

    async def close(self) -> None:
        """Finish."""
