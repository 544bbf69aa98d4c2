"""Failures of a writer that a caller has not received yet; each is raised once, to the next caller.

This module takes no lock: the caller holds the lock of the writer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from comporta.pipeline.writer.buffers import RowBuffer


class PendingFailures:
    """Errors in the order in which they happened, each with the buffer that pauses for it, if any.

    ``pending`` is one list for the life of a writer, so that a hot path can check whether it is empty.
    """

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: list[tuple[RowBuffer | None, BaseException]] = []

    def add(self, error: BaseException) -> None:
        """Keep an error of the writer as a whole, such as a sink that cannot be closed."""
        self.pending.append((None, error))

    def add_once(self, error: BaseException) -> None:
        """Keep an error of the writer as a whole, unless there is one already."""
        if all(buffer is not None for buffer, _ in self.pending):
            self.add(error)

    def pause(self, buffer: RowBuffer, error: BaseException) -> None:
        """Keep an error of a buffer, which starts no batch until the error is raised."""
        buffer.paused = True
        self.pending.append((buffer, error))

    def resume(self, buffers: Iterable[RowBuffer]) -> None:
        """Drop the errors of buffers, which try once more: if they fail again, that error is raised."""
        self.pending[:] = [(buffer, error) for buffer, error in self.pending if buffer is None]
        for buffer in buffers:
            buffer.paused = False

    def raise_first(self) -> NoReturn:
        """Raise the oldest error; the buffer that paused for it continues."""
        buffer, error = self.pending.pop(0)
        if buffer is not None:
            buffer.paused = False
            buffer.waiter.wake()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame, which would refer to it
