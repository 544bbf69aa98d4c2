"""Fetches one source for many UFs concurrently, page by page, within bounds.

A UF that fails does not affect the others. The cache and other sources are not known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from comporta.cache.entry import Loaded
from comporta.errors import CircuitOpenError, RefusedError
from comporta.outcome import error_summary
from comporta.service.search.coverage import uf_coverage
from comporta.service.search.progress import FetchProgress
from comporta.service.search.query import SearchScope
from comporta.service.sources.base import Notice, NoticeSource, PortalError, UfQuery

UF_CONCURRENCY: Final = 10
"""The upstream's number of calls in flight: more would only wait and delay other searches."""

NOTICES_MAX: Final = 5000
"""The largest number of notices from one source; further pages are not fetched, and the response says so."""

PublishProgress = Callable[[SearchScope, FetchProgress], None]


class SourceFailedError(PortalError):
    """A source returned nothing at all."""


class FetchBounds(NamedTuple):
    """Bounds of one fetch: pages for each UF, and seconds for all of them."""

    pages_max: int
    seconds: float


class SourceFetcher:
    """One fetch from one source; ``publish`` receives its progress."""

    def __init__(
        self, source: NoticeSource, scope: SearchScope, bounds: FetchBounds, publish: PublishProgress
    ) -> None:
        self._source = source
        self._scope = scope
        self._bounds = bounds
        self._publish = publish
        self._semaphore = asyncio.Semaphore(UF_CONCURRENCY)
        self._circuit_error: CircuitOpenError | None = None
        self._circuit_closed = False
        self._done = self._failed = self._total = self._pages = self._notices = 0

    async def load(self, ufs: Sequence[str]) -> Loaded:
        """Return the notices by UF; if there are none, raise a refusal (nothing was tried) or an error."""
        self._total = len(ufs)
        tasks: dict[str, asyncio.Task[dict[str, Any]]] = {}
        try:
            async with asyncio.timeout(self._bounds.seconds):
                await self._run_tasks(ufs, tasks)
        except TimeoutError:
            pass  # results up to now count
        finally:
            for task in tasks.values():
                task.cancel()
            ended = await asyncio.gather(*tasks.values(), return_exceptions=True)
        loaded = {uf: result for uf, result in zip(tasks, ended, strict=True) if isinstance(result, dict)}
        if not loaded:
            raise self._failure([error for error in ended if isinstance(error, BaseException)])
        coverage = uf_coverage(loaded, [uf for uf in ufs if uf not in loaded], len(ufs))
        return Loaded(loaded, coverage, [self._source.name], self._notices)

    async def _run_tasks(self, ufs: Sequence[str], tasks: dict[str, asyncio.Task[dict[str, Any]]]) -> None:
        """Start the fetches of all UFs; while the circuit is not closed, one at a time, as probes."""
        for uf in ufs:
            one_at_a_time = self._circuit_error is None and not await self._is_circuit_closed()
            tasks[uf] = asyncio.create_task(self._fetch_uf(uf))
            if one_at_a_time:
                await asyncio.wait([tasks[uf]])
        await asyncio.wait(tasks.values())

    async def _is_circuit_closed(self) -> bool:
        """Whether the circuit is closed; once it is, the answer is not read again."""
        breaker = self._source.upstream.breaker
        if not self._circuit_closed and breaker is not None:
            self._circuit_closed = (await breaker.get_state()).phase == "closed"
        return self._circuit_closed or breaker is None

    async def _fetch_uf(self, uf: str) -> dict[str, Any]:
        async with self._semaphore:
            try:
                return await self._fetch_pages(uf)
            except CircuitOpenError as error:
                self._circuit_error = error
                raise
            except Exception:
                self._failed += 1
                self._publish_progress()
                raise

    async def _fetch_pages(self, uf: str) -> dict[str, Any]:
        notices: list[Notice] = []
        query = UfQuery(self._scope.first_day, self._scope.last_day, self._scope.modality, uf)
        number, pages = 0, 1
        while number < min(pages, self._bounds.pages_max) and (not number or self._notices < NOTICES_MAX):
            if self._circuit_error is not None:
                raise self._circuit_error
            number += 1
            page = await self._source.fetch_page(query, number)
            notices += page.notices
            pages = page.page_count
            self._pages += 1
            self._notices += len(page.notices)
            self._publish_progress()
        self._done += 1
        self._publish_progress()
        return {"notices": notices, "truncated": number < pages}

    def _publish_progress(self) -> None:
        self._publish(
            self._scope,
            FetchProgress(
                self._source.name, self._done, self._failed, self._total, self._pages, self._notices
            ),
        )

    def _failure(self, errors: list[BaseException]) -> Exception:
        """Return the error to raise: a refusal says nothing about the query and is not its failure."""
        refusals = [error for error in errors if isinstance(error, RefusedError)]
        failures = [error for error in errors if isinstance(error, Exception) and error not in refusals]
        if refusals and not failures:
            return min(refusals, key=lambda error: error.retry_after)
        reason = error_summary(failures[0]) if failures else f"nothing within {self._bounds.seconds:g} s"
        return SourceFailedError(f"{self._source.name} returned nothing: {reason}")
