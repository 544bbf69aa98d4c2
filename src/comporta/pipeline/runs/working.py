"""What becomes of one item: its step, tried again where that is asked for; then a row, a letter, nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from comporta.errors import SourceError
from comporta.pipeline.hands import Hands
from comporta.pipeline.letters import Letter
from comporta.pipeline.runs.books import Books
from comporta.pipeline.runs.outlet import Outlet
from comporta.pipeline.runs.report import Report
from comporta.pipeline.runs.sources import Entry
from comporta.retry.retry import Attempt, Failed

if TYPE_CHECKING:
    from comporta.pipeline.runs.pipeline import Pipeline


class Work:
    """The steps of one run."""

    def __init__(self, pipeline: Pipeline, report: Report, books: Books, outlet: Outlet | None) -> None:
        self._pipeline = pipeline
        self._report = report
        self._books = books
        self._outlet = outlet
        self._hands = Hands(pipeline.workers, "comporta-step")
        self._step: Callable[[Any], Awaitable[Any]] = self._on_a_thread
        if pipeline.awaited:
            self._step = pipeline.step  # type: ignore[assignment]  # that is what awaited says

    def keyed(self, entry: Entry) -> tuple[Entry, Hashable]:
        """Return an entry with its key; one that has none is in trouble, and waits for nobody."""
        if entry.trouble or self._pipeline.key is None:
            return entry, object()
        try:
            key = self._pipeline.key(entry.item)
            hash(key)
        except Exception as error:
            return entry._replace(trouble=f"item {entry.number} has no key: {_told(error)}"), object()
        return entry, key

    async def do(self, entry: Entry, key: Hashable) -> None:
        """Do everything for one item; it is done when this returns, or when its row is written."""
        if entry.trouble:
            await self._give_up(entry, entry.trouble)
            return
        tries = _Tries(self._step, entry.item)
        try:
            if self._pipeline.retry is None:
                row = await tries()
            else:
                row = await self._pipeline.retry.call(tries)
        except Exception as error:
            self._report.retries += max(0, tries.made - 1)
            await self._give_up(entry, _told(error), tries.made, key, error)
            return
        self._report.retries += tries.made - 1
        await self._pass_on(entry, row)

    def close(self) -> None:
        """Let the threads go; one that hangs in a step is not waited for."""
        self._hands.close()

    async def _pass_on(self, entry: Entry, row: Any) -> None:
        if row is None or self._outlet is None:
            self._books.confirm([entry.position])
            return
        if not isinstance(row, Mapping):
            raise TypeError(f"step must return a row, which is a mapping, or None, got {row!r:.100}")
        await self._outlet.write(entry, row)

    async def _give_up(
        self,
        entry: Entry,
        reason: str,
        attempts: int = 0,
        key: Hashable = None,
        error: Exception | None = None,
    ) -> None:
        if self._books.letters is None:
            raise given_up(entry, reason, error)
        letter = Letter(entry.item, reason, attempts, key, entry.number)
        await self._books.bury(entry.position, letter)

    async def _on_a_thread(self, item: Any) -> Any:
        attempt = Attempt(self._pipeline.step, (item,), {})
        outcome = await self._hands.do(attempt.block)
        if type(outcome) is Failed:
            outcome.raise_it()
        return outcome


class _Tries:
    """The step of one item, to be tried; counts how often it was."""

    __slots__ = ("_item", "_step", "made")

    def __init__(self, step: Callable[[Any], Awaitable[Any]], item: Any) -> None:
        self._step = step
        self._item = item
        self.made = 0

    async def __call__(self) -> Any:
        self.made += 1
        return await self._step(self._item)


def given_up(entry: Entry, reason: str, error: Exception | None) -> Exception:
    """Return what ends a run that has nowhere to put what it gives up: the error itself, with the item."""
    if error is None:
        return SourceError(reason)
    error.add_note(f"This was item {entry.number}; give dead_letters to go on without it.")
    return error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
