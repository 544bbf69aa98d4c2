"""One source, asked for many UFs at once, each page by page, within bounds; what fails spoils no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from comporta.cache.cached import Loaded
from comporta.cache.coverage import Coverage
from comporta.errors import CircuitOpenError, RefusedError
from comporta.service.search.board import Progress
from comporta.service.search.query import Question
from comporta.service.sources.base import Notice, Source, SourceError, Wanted
from comporta.upstream.verdict import described

UFS_AT_ONCE: Final = 10
"""As many as the upstream has in flight: more would only wait, and keep other searches waiting."""

NOTICES_MAX: Final = 5000
"""Of one source for one question; further pages are not asked for, and the answer says so."""

Tell = Callable[[Question, Progress], None]


class SourceFailedError(SourceError):
    """A source brought nothing at all."""


class Bounds(NamedTuple):
    """Of one fetch: pages of each UF, and seconds for all of it."""

    pages_max: int
    seconds: float


class Gathering:
    """One fetch from one source."""

    def __init__(self, source: Source, question: Question, bounds: Bounds, tell: Tell) -> None:
        self._source = source
        self._question = question
        self._bounds = bounds
        self._tell = tell
        self._gate = asyncio.Semaphore(UFS_AT_ONCE)
        self._shut: CircuitOpenError | None = None
        self._closed = False
        self._done = self._failed = self._total = self._pages = self._notices = 0

    async def load(self, ufs: Sequence[str]) -> Loaded:
        """Return the notices by UF; raises if there is none, as a refusal if nothing was even tried."""
        self._total = len(ufs)
        tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await self._begun(ufs, tasks)
        except TimeoutError:
            pass  # what came until then counts
        finally:
            for task in tasks.values():
                task.cancel()
            ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
        found = {uf: part for uf, part in zip(tasks, ended, strict=True) if isinstance(part, dict)}
        if not found:
            raise self._failure([error for error in ended if isinstance(error, BaseException)])
        coverage = Coverage(tuple(found), tuple(uf for uf in ufs if uf not in found), len(ufs))
        return Loaded(found, coverage, [self._source.name], self._notices)

    async def _begun(self, ufs: Sequence[str], tasks: dict[str, asyncio.Task[dict[str, Any]]]) -> None:
        """Ask for all UFs at once; one by one while the circuit is not closed, and lets no more through."""
        for uf in ufs:
            careful = self._shut is None and not await self._is_closed()
            tasks[uf] = asyncio.create_task(self._of_uf(uf))
            if careful:
                await asyncio.wait([tasks[uf]])
        await asyncio.wait(tasks.values())

    async def _is_closed(self) -> bool:
        """Whether the circuit is closed; asked until it is, or refuses."""
        breaker = self._source.upstream.breaker
        if not self._closed and breaker is not None:
            self._closed = (await breaker.get_state()).phase == "closed"
        return self._closed or breaker is None

    async def _of_uf(self, uf: str) -> dict[str, Any]:
        async with self._gate:
            try:
                return await self._pages_of(uf)
            except CircuitOpenError as error:
                self._shut = error
                raise
            except Exception:
                self._failed += 1
                self._told()
                raise

    async def _pages_of(self, uf: str) -> dict[str, Any]:
        notices: list[Notice] = []
        wanted = Wanted(self._question.first, self._question.last, self._question.modality, uf)
        number, pages = 0, 1
        while number < min(pages, self._bounds.pages_max) and (not number or self._notices < NOTICES_MAX):
            if self._shut is not None:
                raise self._shut
            number += 1
            page = await self._source.page(wanted, number)
            notices += page.notices
            pages = page.pages
            self._pages += 1
            self._notices += len(page.notices)
            self._told()
        self._done += 1
        self._told()
        return {"notices": notices, "truncated": number < pages}

    def _told(self) -> None:
        self._tell(
            self._question,
            Progress(self._source.name, self._done, self._failed, self._total, self._pages, self._notices),
        )

    def _failure(self, errors: list[BaseException]) -> Exception:
        """Return what to raise: a refusal says nothing about the question, and is not held against it."""
        refusals = [error for error in errors if isinstance(error, RefusedError)]
        failures = [error for error in errors if isinstance(error, Exception) and error not in refusals]
        if refusals and not failures:
            return min(refusals, key=lambda error: error.retry_after)
        why = described(failures[0]) if failures else f"nothing within {self._bounds.seconds:g} s"
        return SourceFailedError(f"{self._source.name} brought nothing: {why}")
