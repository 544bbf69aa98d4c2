"""The objects that routes share, opened when the application starts and closed when it ends.

Each group of routes keeps what it needs in :class:`Container`; :func:`open_container` opens and closes it.
A route gets the container with :data:`ContainerDep`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import Depends, Request

from comporta import events
from comporta.cache.cache import HealthCache
from comporta.database.migrations import check_applied, migrate
from comporta.database.urls import open_database, sqlite_path
from comporta.errors import DatabaseError, DatabaseSchemaError, StateAuthError, StateError
from comporta.fleet import FleetCounters, FleetPublisher
from comporta.integrations.client_ip import ClientAddress
from comporta.integrations.inbound_limit import InboundLimit
from comporta.limits.limiter import BaseLimiter
from comporta.metrics import use_metrics
from comporta.service.audit import AuditLog
from comporta.service.auth_throttle import AuthThrottle
from comporta.service.batch.batches import Batches
from comporta.service.batch.downloads import SheetDownloads
from comporta.service.batch.factory import BatchComponents, open_batches
from comporta.service.dashboard.dashboard import Dashboard
from comporta.service.dashboard.demo_portals import DemoPortals
from comporta.service.database_outage import DatabaseOutage
from comporta.service.disk_check import DATABASE, DiskCheck
from comporta.service.health import CachedHealth
from comporta.service.identity import Authenticator, Identity
from comporta.service.metrics import ServiceMetrics
from comporta.service.migrations import MIGRATIONS
from comporta.service.search import fetcher, listing_reader
from comporta.service.search.search import Search
from comporta.service.sources.base import NoticeSource
from comporta.service.sources.factory import check_addresses, open_sources
from comporta.stores.failover.worker_registry import ListWorkers
from comporta.stores.shared.directory import directory_path
from comporta.upstream.registry import Upstreams

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.service.config import ServiceConfig
    from comporta.stores.base import Store

BATCH_STOP_SECONDS = 4.0
"""How long running accounts and their sheet writes may take to end at shutdown."""

CLOSE_SECONDS = 3.0
"""How long closing may take once no work is left."""

CACHE_ENTRIES_PER_USER: Final = 1000
"""How many cached answers each user may have. A search is one answer per source, and all anonymous clients
are one user."""

SHARED: Final = "shared://"
LOAD_MARGIN_SECONDS: Final = 60.0
"""How much longer than its own bound a load may take until the cache ends it."""

CACHE_TABLE_ENTRIES: Final = 1_000_000
CACHE_TABLE_BYTES: Final = 16 * 1024**3
"""Bounds of the whole table, beyond which the least recently used answers are evicted."""


@dataclass
class Container:
    """The shared objects of one worker.

    ``is_draining`` says that the worker will end soon: ``/readyz`` reports it, and the worker continues to
    serve requests. ``shutting_down`` is set as soon as the worker starts to end; streams watch it and finish.
    ``demo`` is set only if the portals are simulated.
    """

    config: ServiceConfig
    database: Database
    upstreams: Upstreams
    cache: HealthCache
    listings: HealthCache
    client_admission: InboundLimit | None
    audit: AuditLog
    sources: dict[str, NoticeSource]
    search: Search
    batches: Batches
    downloads: SheetDownloads
    authenticator: Authenticator
    disk_check: DiskCheck
    health: CachedHealth = field(default_factory=CachedHealth)
    metrics: ServiceMetrics = field(default_factory=ServiceMetrics)
    retry_backfill: Callable[[str], Coroutine[Any, Any, Any]] | None = None
    demo: DemoPortals | None = None
    started_at: float = field(default_factory=time.time)
    is_draining: bool = False
    shutting_down: asyncio.Event = field(default_factory=asyncio.Event)
    admin_throttle: AuthThrottle = field(init=False)
    database_outage: DatabaseOutage = field(init=False)
    counters: FleetCounters = field(init=False)
    publisher: FleetPublisher = field(init=False)
    dashboard: Dashboard = field(init=False)

    def __post_init__(self) -> None:
        """Create the objects that need the others."""
        self.admin_throttle = AuthThrottle("admin", "an admin route", self.config, self.store)
        self.database_outage = DatabaseOutage(self.database)
        self.counters = FleetCounters(self.metrics.sink)
        self.publisher = FleetPublisher(self.store, self.upstreams, self.counters)
        self.dashboard = Dashboard(self)

    @property
    def store(self) -> Store:
        """The store that all workers share."""
        return self.upstreams.store


def get_container(request: Request) -> Container:
    """Return the container of the application that handles ``request``."""
    container: Container = request.app.state.container
    return container


ContainerDep = Annotated[Container, Depends(get_container)]


async def get_identity(request: Request) -> Identity | None:
    """Return the user of a request; ``None`` without authentication."""
    return await get_container(request).authenticator.identify(request)


IdentityDep = Annotated[Identity | None, Depends(get_identity)]


@asynccontextmanager
async def open_container(
    config: ServiceConfig, batch_components: BatchComponents | None = None, demo_url: str | None = None
) -> AsyncIterator[Container]:
    """Open all shared objects, on a thread where that blocks, and close them at the end."""
    await check_addresses(config)
    container = await asyncio.to_thread(
        _build_container, config, batch_components or BatchComponents(), demo_url
    )
    previous_metrics = use_metrics(container.counters)
    await asyncio.to_thread(container.publisher.start)
    refreshing = _start_refresh_loops(container)
    stopping = asyncio.create_task(_stop_batches_on_shutdown(container))
    container.batches.start()
    try:
        await _register_worker(container.store)
        yield container
    finally:
        container.shutting_down.set()
        for task in refreshing:
            task.cancel()
        await asyncio.gather(*refreshing, stopping, return_exceptions=True)
        await container.batches.aclose(0)
        await container.dashboard.aclose()
        container.database_outage.close()
        container.disk_check.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await container.cache.aclose()
                await container.listings.aclose()
                for source in container.sources.values():
                    await source.aclose()
                if container.demo is not None:
                    await container.demo.aclose()
                await asyncio.to_thread(container.publisher.close)
                await container.upstreams.aclose()
        except TimeoutError:
            text = f"could not close everything within {CLOSE_SECONDS:g} s"
            events.publish("service_close", "service", text)
        use_metrics(previous_metrics)
        container.metrics.close()
        container.search.close()
        container.downloads.close()
        await asyncio.to_thread(container.database.close)


def _start_refresh_loops(container: Container) -> list[asyncio.Task[None]]:
    loops = [container.search.run_refresh_loop()]
    if container.authenticator.tokens is not None:
        loops.append(container.authenticator.tokens.run_refresh_loop())
    return [asyncio.create_task(loop) for loop in loops]


async def _register_worker(store: Store) -> None:
    """Connect to the store so that this worker is registered. Wrong credentials raise, an outage does not."""
    try:
        await store.apply_async(ListWorkers())
    except StateAuthError:
        raise
    except StateError:
        return  # the failover store keeps trying


async def _stop_batches_on_shutdown(container: Container) -> None:
    """Stop batches as soon as the worker shuts down, so that other workers can continue them."""
    await container.shutting_down.wait()
    await container.batches.stop(BATCH_STOP_SECONDS)


def _build_container(
    config: ServiceConfig, batch_components: BatchComponents, demo_url: str | None
) -> Container:
    database = open_database(config.database)
    try:
        _migrate(database)
        upstreams = Upstreams(config.settings, share_breakers=config.share_breakers)
        cache = HealthCache(
            database,
            name="search",
            fresh=config.search.fresh,
            stale=config.search.stale,
            refresh_timeout=fetcher.FETCH_SECONDS_MAX + LOAD_MARGIN_SECONDS,
            entries_per_user=CACHE_ENTRIES_PER_USER,
            table_entries=CACHE_TABLE_ENTRIES,
            table_bytes=CACHE_TABLE_BYTES,
            state=upstreams.store,
            migrate=False,
        )
        listings = HealthCache(
            database,
            name=listing_reader.NAME,
            fresh=min(listing_reader.FRESH_SECONDS_MAX, config.search.fresh),
            stale=min(listing_reader.FRESH_SECONDS_MAX, config.search.fresh),
            refresh_timeout=listing_reader.READ_SECONDS_MAX + LOAD_MARGIN_SECONDS,
            table_entries=CACHE_TABLE_ENTRIES,
            table_bytes=CACHE_TABLE_BYTES,
            state=upstreams.store,
            migrate=False,
        )
        sources = open_sources(config, upstreams)
        batches = open_batches(config, database, upstreams, batch_components)
        return Container(
            config,
            database,
            upstreams,
            cache,
            listings,
            client_admission=_client_admission(config, upstreams.store),
            audit=AuditLog(database),
            sources=sources,
            search=Search(sources, cache, listings, config.search),
            batches=batches,
            downloads=SheetDownloads(database),
            authenticator=Authenticator(config, database),
            disk_check=DiskCheck(_written_directories(config, upstreams.store), database),
            retry_backfill=batches.retry_backfill,
            demo=None if demo_url is None else DemoPortals(demo_url),
        )
    except BaseException:
        database.close()
        raise


def _written_directories(config: ServiceConfig, store: Store) -> dict[str, Path]:
    """Return the directories of this machine that the service writes to, keyed by what they hold."""
    directories = {}
    database = sqlite_path(config.database)
    if database is not None:
        directories[DATABASE] = database.parent
    if store.address.startswith(SHARED):
        directories["the shared state"] = Path(directory_path(store.address.removeprefix(SHARED)))
    if config.sheets == "files":
        directories["the sheets"] = config.sheets_folder
    return directories


def _client_admission(config: ServiceConfig, store: Store) -> InboundLimit | None:
    if config.client_limit is None:
        return None
    limiter = BaseLimiter(config.client_limit, store, "service_clients")
    address = ClientAddress(config.trusted_proxies)
    return InboundLimit(limiter, key=address, trusted_proxies=(), cost=1, name="clients", on_error="open")


def _migrate(database: Database) -> None:
    """Migrate the tables. An unreachable database is reported but not an error: it may recover later."""
    try:
        try:
            check_applied(database, MIGRATIONS)
        except DatabaseSchemaError:
            migrate(database, MIGRATIONS)
    except DatabaseError as error:
        events.publish("database_unreadable", "service", f"could not check the tables: {error}", "error")
