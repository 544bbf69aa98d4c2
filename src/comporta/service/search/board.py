"""How far fetches of this worker are, for those who watch; nobody watches, nothing is kept.

Only the latest state is kept, so a slow watcher costs no memory and misses nothing but steps in between. All
of it lives on one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from comporta.service.search.query import Question

WATCHERS_MAX: Final = 1000


class Progress(NamedTuple):
    """How far one source is with a question."""

    source: str
    ufs_done: int
    ufs_failed: int
    ufs_total: int
    pages: int
    notices: int


class Watch:
    """What one watcher has not seen yet."""

    def __init__(self) -> None:
        self._latest: dict[str, Progress] = {}
        self._bell = asyncio.Event()

    def tell(self, progress: Progress) -> None:
        """Keep the latest of each source."""
        self._latest[progress.source] = progress
        self._bell.set()

    async def changed(self) -> None:
        """Wait until there is something new."""
        await self._bell.wait()

    def take(self) -> list[dict[str, Any]]:
        """Return what is new, as it is told."""
        self._bell.clear()
        latest, self._latest = self._latest, {}
        return [progress._asdict() for progress in latest.values()]


class Board:
    """Who watches which question; at most ``WATCHERS_MAX`` at once."""

    def __init__(self) -> None:
        self._watches: dict[Question, set[Watch]] = {}
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether nobody else can watch."""
        return self._count >= WATCHERS_MAX

    @contextmanager
    def watching(self, question: Question) -> Iterator[Watch]:
        """Watch a question."""
        watch = Watch()
        self._count += 1
        self._watches.setdefault(question, set()).add(watch)
        try:
            yield watch
        finally:
            self._count -= 1
            self._watches[question].discard(watch)
            if not self._watches[question]:
                del self._watches[question]

    def tell(self, question: Question, progress: Progress) -> None:
        """Tell all who watch a question."""
        for watch in self._watches.get(question, ()):
            watch.tell(progress)
