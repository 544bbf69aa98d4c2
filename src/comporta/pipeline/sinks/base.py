"""The protocols of a sink: what a batch writer needs of the place it writes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Row = Mapping[str, Any]
"""One row: column names and their values."""


class Sink(Protocol):
    """A blocking sink; the batch writer calls it on threads of its own.

    Batches of one key come one after another, in order. Batches of different keys may come from different
    threads at the same time.
    """

    def open(self) -> None:
        """Prepare for writing, or raise. It is called before anything else."""

    def write(self, rows: Sequence[Row]) -> None:
        """Store all of these rows, or raise; then all may come again, also those that are stored."""

    def close(self) -> None:
        """Finish. It is called last, and may be called again."""


class AsyncSink(Protocol):
    """An asynchronous sink; the batch writer calls it on the event loop."""

    async def open(self) -> None:
        """Prepare for writing, or raise."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Store all of these rows, or raise."""

    async def close(self) -> None:
        """Finish."""
