"""What routes work with: opened when the application starts, closed when it ends.

Each group of routes puts what it needs on :class:`Parts`, and opens it in :func:`opened`: what is entered
later is closed earlier. A route finds them with ``Depends(parts_of)``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastapi import Request

from comporta import events
from comporta.cache.cache import HealthCache
from comporta.database.migrations import check, migrate
from comporta.database.urls import open_database
from comporta.errors import DatabaseError, DatabaseSchemaError, StateDeniedError, StateError
from comporta.integrations.addresses import ClientAddress
from comporta.integrations.inbound import Inbound
from comporta.limits.limiter import BaseLimiter
from comporta.metrics import use_metrics
from comporta.service.audit import Audit
from comporta.service.batch.batches import Batches
from comporta.service.batch.opening import BatchPlugs, open_batches
from comporta.service.dashboard.dashboard import Dashboard
from comporta.service.dashboard.demo import Demo
from comporta.service.figures import Figures
from comporta.service.migrations import MIGRATIONS
from comporta.service.search.searching import Search
from comporta.service.sources.base import Source
from comporta.service.sources.opening import check_addresses, open_sources
from comporta.service.tries import Tries
from comporta.stores.workers import Roll
from comporta.upstream.upstreams import Upstreams
from comporta.watching import Tallies, Teller

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

HALT_SECONDS = 4.0
"""How long accounts that are being done may take to end, and their rows to be written."""

CLOSE_SECONDS = 3.0
"""How long giving things back may take, once nothing is under way any more."""

KEPT_PER_USER: Final = 1000
"""How many answers are kept for each user: all who do not say who they are are one, and a search is one
answer for each source."""


@dataclass
class Parts:
    """Of one worker. ``leaving`` is set as soon as it is told to end: streams look at it and finish.

    ``clients`` is the limit for those who ask us. ``retry_backfill`` takes the id of a job; it is there where
    batches are. ``demo`` is there where portals are simulated.
    """

    config: ServiceConfig
    database: Database
    upstreams: Upstreams
    cache: HealthCache
    clients: Inbound | None
    audit: Audit
    sources: dict[str, Source]
    search: Search
    batches: Batches
    figures: Figures = field(default_factory=Figures)
    retry_backfill: Callable[[str], Coroutine[Any, Any, Any]] | None = None
    demo: Demo | None = None
    started: float = field(default_factory=time.time)
    leaving: asyncio.Event = field(default_factory=asyncio.Event)
    admin_tries: Tries = field(init=False)
    tallies: Tallies = field(init=False)
    teller: Teller = field(init=False)
    dashboard: Dashboard = field(init=False)

    def __post_init__(self) -> None:
        """Make what is asked of the whole fleet, what counts for it, what tells it, and what shows it."""
        self.admin_tries = Tries("admin", "an admin route", self.config, self.store)
        self.tallies = Tallies(self.figures.sink)
        self.teller = Teller(self.store, self.upstreams, self.tallies)
        self.dashboard = Dashboard(self)

    @property
    def store(self) -> Store:
        """The state that all workers share."""
        return self.upstreams.store


def parts_of(request: Request) -> Parts:
    """Return the parts of the application that a request is for."""
    found: Parts = request.app.state.parts
    return found


@asynccontextmanager
async def opened(
    config: ServiceConfig, plugs: BatchPlugs | None = None, demo: str | None = None
) -> AsyncIterator[Parts]:
    """Open what there is; what blocks is done on a thread, before anybody is served."""
    await check_addresses(config)
    parts = await asyncio.to_thread(_made, config, plugs or BatchPlugs(), demo)
    before = use_metrics(parts.tallies)
    await asyncio.to_thread(parts.teller.start)
    keeping = asyncio.create_task(parts.search.keep_fresh())
    halting = asyncio.create_task(_halting(parts))
    parts.batches.start()
    try:
        await _entered(parts.store)
        yield parts
    finally:
        parts.leaving.set()
        keeping.cancel()
        await asyncio.gather(keeping, halting, return_exceptions=True)
        await parts.batches.aclose(0)
        await parts.dashboard.aclose()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await parts.cache.aclose()
                for source in parts.sources.values():
                    await source.aclose()
                if parts.demo is not None:
                    await parts.demo.aclose()
                await asyncio.to_thread(parts.teller.close)
                await parts.upstreams.aclose()
        except TimeoutError:
            events.publish("service_close", "service", "not everything could be given back in time")
        use_metrics(before)
        parts.figures.close()
        parts.search.close()
        await asyncio.to_thread(parts.database.close)


async def _entered(store: Store) -> None:
    """Be one of the workers from now on, asked or not; a server that does not let us in is an error now."""
    try:
        await store.apply_async(Roll())
    except StateDeniedError:
        raise
    except StateError:
        return  # it is looked for from now on


async def _halting(parts: Parts) -> None:
    """Have batches come to a halt as soon as the end is near: others can go on with them."""
    await parts.leaving.wait()
    await parts.batches.stop(HALT_SECONDS)


def _made(config: ServiceConfig, plugs: BatchPlugs, demo: str | None) -> Parts:
    database = open_database(config.database)
    try:
        _migrated(database)
        upstreams = Upstreams(config.settings, share_breakers=config.share_breakers)
        cache = HealthCache(
            database,
            name="search",
            fresh=config.search.fresh,
            stale=config.search.stale,
            entries_per_user=KEPT_PER_USER,
            state=upstreams.store,
            migrate=False,
        )
        sources = open_sources(config, upstreams)
        batches = open_batches(config, database, upstreams, plugs)
    except BaseException:
        database.close()
        raise
    return Parts(
        config,
        database,
        upstreams,
        cache,
        clients=_clients(config, upstreams.store),
        audit=Audit(database),
        sources=sources,
        search=Search(sources, cache, config.search),
        batches=batches,
        retry_backfill=batches.retry_backfill,
        demo=None if demo is None else Demo(demo),
    )


def _clients(config: ServiceConfig, store: Store) -> Inbound | None:
    if config.client_limit is None:
        return None
    limiter = BaseLimiter(config.client_limit, store, "service_clients")
    address = ClientAddress(config.trusted_proxies)
    return Inbound(limiter, key=address, trusted_proxies=(), cost=1, name="clients", on_error="open")


def _migrated(database: Database) -> None:
    """Bring the tables up to date; a database that is out of reach may be there later."""
    try:
        try:
            check(database, MIGRATIONS)
        except DatabaseSchemaError:
            migrate(database, MIGRATIONS)
    except DatabaseError as error:
        events.publish("database_unreadable", "service", f"could not look at the tables: {error}", "error")
