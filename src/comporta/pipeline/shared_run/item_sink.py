"""Settles lines: their rows or dead letters are stored and the lines deleted, in one transaction.

A line that no longer belongs to this worker, because its lease expired and another worker claimed it, is left
out: the other worker writes its rows. The same applies if a commit took effect and its reply was lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from comporta.database.base import RunStatement
from comporta.errors import SinkRowError
from comporta.pipeline.dead_letters import DeadLetter, encode_dead_letter
from comporta.pipeline.run.item_sink import ItemRows
from comporta.pipeline.run.sources import SourceEntry
from comporta.pipeline.shared_run.commands import add_dead_letters, count_lines, delete_lines
from comporta.pipeline.shared_run.models import LineCounts, RunSession
from comporta.pipeline.sinks.base import SinkTransaction, TransactionalSink


class SettledBatch(NamedTuple):
    """The outcome of the lines of one transaction; ``lost`` lines belong to other workers."""

    dead: frozenset[int]
    lost: frozenset[int]


class SharedItemSink:
    """A sink that takes the rows of items and settles their lines in the transaction that writes them."""

    end = None

    def __init__(
        self,
        sink: TransactionalSink,
        session: RunSession,
        dead_letter_of: Callable[[SourceEntry, str, int], DeadLetter],
        on_settled: Callable[[SettledBatch], None],
    ) -> None:
        self._sink = sink
        self._session = session
        self._dead_letter_of = dead_letter_of
        self._on_settled = on_settled

    def open(self) -> None:
        """Open the sink."""
        self._sink.open()

    def write(self, items: Sequence[Any]) -> None:
        """Settle all items; an item whose row is at fault becomes a dead letter in the same transaction."""
        letters: dict[int, DeadLetter] = {}
        while True:
            try:
                with self._sink.transaction() as transaction:
                    lost = self._settle(transaction, items, letters)
                break
            except SinkRowError as error:
                entry: SourceEntry = items[error.index].entry
                reason = f"{type(error).__name__}: {error}"
                letters[entry.position] = self._dead_letter_of(entry, reason, 1)
        self._on_settled(SettledBatch(frozenset(letters) - lost, lost))

    def close(self) -> None:
        """Close the sink."""
        self._sink.close()

    def _settle(
        self, transaction: SinkTransaction, items: Sequence[ItemRows], letters: dict[int, DeadLetter]
    ) -> frozenset[int]:
        """Write rows and dead letters, and return the positions that belong to other workers."""
        positions = [item.entry.position for item in items]
        held = delete_lines(transaction.execute, self._session, positions)
        indexes = [
            index
            for index, position in enumerate(positions)
            if position in held and position not in letters
            for _ in items[index].rows
        ]
        rows = [row for index in dict.fromkeys(indexes) for row in items[index].rows]
        try:
            if rows:
                transaction.write(rows)
        except SinkRowError as error:
            raise SinkRowError(str(error), indexes[error.index]) from error
        dead = {position: letter for position, letter in letters.items() if position in held}
        store_outcomes(transaction.execute, self._session, dead, written=len(held) - len(dead))
        return frozenset(positions) - held


def store_outcomes(
    run: RunStatement,
    session: RunSession,
    letters: dict[int, DeadLetter],
    *,
    written: int = 0,
    without_rows: int = 0,
) -> None:
    """Store dead letters and add to the counts of this worker."""
    if letters:
        encoded = [(position, encode_dead_letter(letter)) for position, letter in letters.items()]
        add_dead_letters(run, session, encoded)
    count_lines(run, session, LineCounts(written, len(letters), without_rows))
