"""Fetches the listings of one source concurrently, within bounds.

A listing that fails does not affect the others. A fetch outlives the searches that wait for it, up to
``FETCH_SECONDS_MAX``: a search has a deadline of its own. This module does not know how searches are
answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from comporta.cache.entry import Loaded
from comporta.errors import CachePendingError, CircuitOpenError, LimitReachedError, RefusedError
from comporta.limits.priority import Caller, resolve_caller
from comporta.outcome import error_summary
from comporta.service.search.listing_reader import ListingReader, read_pages
from comporta.service.search.listings import ListedNotices, combine_listings
from comporta.service.search.progress import FetchProgress
from comporta.service.search.query import SearchScope
from comporta.service.search.read_class import as_caller
from comporta.service.sources.base import Listing, Notice, NoticeSource, PortalError

LISTING_CONCURRENCY: Final = 10
"""How many listings a fetch reads at once: the upstream's number of calls in flight."""

CROWD: Final = 50
CROWD_LISTING_CONCURRENCY: Final = 2
"""While ``CROWD`` or more fetches of a worker run, each reads only this many listings at once.

They take turns anyway, and a cache runs at most 1000 loads.
"""

FETCH_SECONDS_MAX: Final = 600.0
"""How long a fetch may take, mostly in the background; what it lacks by then is fetched on request."""

NOTICES_MAX: Final = 5000
"""After this many notices of the modality only first pages are fetched, and the response says so."""

PublishProgress = Callable[[SearchScope, FetchProgress], None]

_NO_CAPACITY = (asyncio.CancelledError, CachePendingError, LimitReachedError)
"""Why a listing was not read although its source did not fail."""


def listing_concurrency(fetches: int) -> int:
    """Return how many listings a fetch reads at once while this many fetches run."""
    return LISTING_CONCURRENCY if fetches < CROWD else CROWD_LISTING_CONCURRENCY


class SourceFailedError(PortalError):
    """A source returned nothing at all."""


class SourceFetcher:
    """One fetch from one source; ``publish`` receives its progress, ``listed`` what it has read so far.

    ``slots`` bounds how many fetches run at once, and ``concurrency`` how many listings it reads at once.
    """

    def __init__(
        self,
        source: NoticeSource,
        scope: SearchScope,
        reader: ListingReader,
        *,
        slots: asyncio.Semaphore,
        concurrency: int,
        publish: PublishProgress,
    ) -> None:
        self.listed: dict[Listing, ListedNotices] = {}
        self._source = source
        self._reader = reader
        self._scope = scope
        self._slots = slots
        self._publish = publish
        self._semaphore = asyncio.Semaphore(concurrency)
        self._circuit_error: CircuitOpenError | None = None
        self._circuit_closed = False
        self._failed = self._total = self._pages = self._notices = 0
        self._started = time.monotonic()
        self._caller = resolve_caller(None, None)
        self._reading: set[Listing] = set()

    @property
    def caller(self) -> Caller:
        """The caller whose class and owner this fetch has."""
        return self._caller

    def raise_to(self, caller: Caller) -> None:
        """Give this fetch the class and the owner of a caller who waits for it, if that class is higher."""
        if caller.rank < self._caller.rank:
            self._caller = caller
            for listing in self._reading:
                self._reader.raise_to(self._source, listing, caller)

    @property
    def pages_per_second(self) -> float:
        """How fast this fetch has read pages of the portal; 0 if it has read none."""
        return self._pages / max(0.001, time.monotonic() - self._started)

    async def load(self, ufs: Sequence[str]) -> Loaded:
        """Return the notices by UF; raise a refusal (which is no failure of the search) or an error.

        A refusal means that nothing was requested, or that there was no capacity for all listings: then the
        listings that have been read are kept, but they are not returned as an answer.
        """
        scope = self._scope
        listings = self._source.listings(scope.first_day, scope.last_day, scope.modality, ufs)
        self._total = len(listings)
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX), self._slots:
                await self._run_tasks(listings, tasks)
        except TimeoutError:
            pass  # the tasks that have not ended are cancelled
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        errors = [error for error in ended if isinstance(error, BaseException)]
        missing = [listing for listing in listings if listing not in self.listed]
        if any(isinstance(error, _NO_CAPACITY) for error in errors) or len(tasks) < len(listings):
            raise self._capacity_error(errors, len(missing))
        if not self.listed:
            raise self._failure(errors)
        first_pages = await self._reader.first_pages(self._source.name, missing)
        answers, coverage = combine_listings(
            self.listed, missing, ufs, self.has_modality, first_pages=first_pages
        )
        return Loaded(answers, coverage, [self._source.name], self._notices)

    def has_modality(self, notice: Notice) -> bool:
        """Whether a listed notice has the modality of the search."""
        return self._source.has_modality(notice, self._scope.modality)

    async def _run_tasks(self, listings: Sequence[Listing], tasks: list[asyncio.Task[None]]) -> None:
        """Start fetching all listings; while the circuit is not closed, one at a time, as probes."""
        for listing in listings:
            one_at_a_time = self._circuit_error is None and not await self._is_circuit_closed()
            tasks.append(asyncio.create_task(self._fetch_listing(listing)))
            if one_at_a_time:
                await asyncio.wait(tasks[-1:])
        await asyncio.wait(tasks)

    async def _is_circuit_closed(self) -> bool:
        """Whether the circuit is closed; once it is, its state is not read again."""
        breaker = self._source.upstream.breaker
        if not self._circuit_closed and breaker is not None:
            self._circuit_closed = (await breaker.get_state()).phase == "closed"
        return self._circuit_closed or breaker is None

    async def _fetch_listing(self, listing: Listing) -> None:
        async with self._semaphore:
            if self._circuit_error is not None:
                raise self._circuit_error
            try:
                listed = await self._read_listing(listing)
            except CircuitOpenError as error:
                self._circuit_error = error
                raise
            except Exception:
                self._failed += 1
                self._publish_progress()
                raise
            self.listed[listing] = listed
            self._notices += sum(map(self.has_modality, listed.notices))
            self._publish_progress()

    async def _read_listing(self, listing: Listing) -> ListedNotices:
        """Return a listing; after ``NOTICES_MAX`` notices, only its first page, which is not shared."""
        with as_caller(self._caller):
            if self._notices >= NOTICES_MAX:
                return await read_pages(self._source, listing, 1, on_page=self._count_page)
            self._reading.add(listing)
            try:
                return await self._reader.read(self._source, listing, self._count_page)
            finally:
                self._reading.discard(listing)

    def _count_page(self) -> None:
        """Publish that a page was read; raise an error if another listing found the circuit open."""
        self._pages += 1
        self._publish_progress()
        if self._circuit_error is not None:
            raise self._circuit_error

    def _publish_progress(self) -> None:
        done = len(self.listed)
        self._publish(
            self._scope,
            FetchProgress(self._source.name, done, self._failed, self._total, self._pages, self._notices),
        )

    def _capacity_error(self, errors: list[BaseException], missing_count: int) -> LimitReachedError:
        waits = [error.retry_after for error in errors if isinstance(error, RefusedError)]
        text = f"{self._source.name}: no capacity for {missing_count} of {self._total} listings yet"
        return LimitReachedError(text, self._source.name, min(waits, default=1.0))

    def _failure(self, errors: list[BaseException]) -> Exception:
        """Return the error to raise: a refusal says nothing about the query and is not its failure."""
        refusals = [error for error in errors if isinstance(error, RefusedError)]
        failures = [error for error in errors if isinstance(error, Exception) and error not in refusals]
        if refusals and not failures:
            return min(refusals, key=lambda error: error.retry_after)
        reason = error_summary(failures[0])
        return SourceFailedError(f"{self._source.name} returned nothing: {reason}")
