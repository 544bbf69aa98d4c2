"""The protocols of a sink: what a batch writer requires of the place to which it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from comporta.database.base import Parameters, Rows, Statement

Row = Mapping[str, Any]
"""One row: column names and their values."""


class Sink(Protocol):
    """A blocking sink; the batch writer calls it on threads of its own.

    Batches of one key come one after another, in order. Batches of different keys may come from different
    threads at the same time.
    """

    def open(self) -> None:
        """Prepare for writing, or raise. Called before anything else."""

    def write(self, rows: Sequence[Row]) -> None:
        """Store all of these rows, or raise; then all may come again, even those that were stored."""

    def close(self) -> None:
        """Finish. Called last, and may be called again."""


class AsyncSink(Protocol):
    """An asynchronous sink; the batch writer calls it on the event loop."""

    async def open(self) -> None:
        """Prepare for writing, or raise."""

    async def write(self, rows: Sequence[Row]) -> None:
        """Store all of these rows, or raise."""

    async def close(self) -> None:
        """Finish."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run with a checkpoint continues in the file of its sink.

    ``run`` identifies the run. ``end`` is how far the file holds rows of confirmed items, ``None`` before the
    first row. ``journal`` is the path of a small file in which the sink records what it writes.
    """

    run: str
    end: int | None
    journal: Path


@runtime_checkable
class ResumableSink(Sink, Protocol):
    """A sink that removes the rows that a killed run wrote after its last checkpoint."""

    def open_run(self, point: ResumePoint) -> None:
        """Open like ``open``, and remove what the run wrote beyond ``point``.

        Raise if another program wrote it.
        """

    @property
    def end(self) -> int:
        """How far the file is written: the value for ``ResumePoint.end``."""


class SinkTransaction(Protocol):
    """A transaction in the database of a sink."""

    def execute(self, statement: Statement, parameters: Parameters) -> Rows:
        """Run another statement in the transaction."""

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows in the transaction, or raise."""


@runtime_checkable
class TransactionalSink(Sink, Protocol):
    """A sink that writes to a database, together with other changes in one transaction."""

    @property
    def database_address(self) -> str:
        """The URL of the database, without user and password."""

    def transaction(self) -> AbstractContextManager[SinkTransaction]:
        """Open a transaction; the end of the block commits it, and an error rolls it back."""
