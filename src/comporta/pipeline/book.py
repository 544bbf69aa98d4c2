"""What one lane has to do with a delivery: which rows are next, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from comporta.pipeline.lanes import Lane
    from comporta.pipeline.sinks.base import Row


class Keeper(Protocol):
    """Who keeps the lanes, and may touch them."""

    abandoned: bool

    def take(self, lane: Lane) -> list[Row]:
        """Return the next batch of a lane."""

    def written(self, lane: Lane, rows: Sequence[Row], seconds: float) -> None:
        """Let go of a batch that the sink has."""

    def buried(self, lane: Lane, rows: Sequence[Row], index: int | None, error: Exception) -> None:
        """Let go of what is in dead letters."""

    def tried_again(self) -> None:
        """Count a retry."""


class Book:
    """The ledger of one lane; see :class:`comporta.pipeline.delivery.Ledger`."""

    __slots__ = ("_keeper", "_lane")

    def __init__(self, keeper: Keeper, lane: Lane) -> None:
        self._keeper = keeper
        self._lane = lane

    @property
    def abandoned(self) -> bool:
        """Whether the whole writer was given up."""
        return self._keeper.abandoned

    def take(self) -> list[Row]:
        """Return the rows that are next."""
        return self._keeper.take(self._lane)

    def written(self, rows: Sequence[Row], seconds: float) -> None:
        """Settle a batch."""
        self._keeper.written(self._lane, rows, seconds)

    def buried(self, rows: Sequence[Row], index: int | None, error: Exception) -> None:
        """Settle what is in dead letters."""
        self._keeper.buried(self._lane, rows, index, error)

    def tried_again(self) -> None:
        """Count it."""
        self._keeper.tried_again()
