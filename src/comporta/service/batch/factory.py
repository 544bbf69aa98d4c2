"""Opens the batches of a service from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2

from comporta.limits.limiter import BaseLimiter
from comporta.pipeline.sinks.google_account import GoogleAccount
from comporta.service.batch.batches import Batches
from comporta.service.batch.database_sheets import DatabaseSheets
from comporta.service.batch.local_sheets import LocalSheets
from comporta.service.batch.processor import (
    BlockingProcessor,
    Processor,
    UpstreamProcessor,
    load_processor,
)
from comporta.service.batch.sheets import GOOGLE_QUOTA, GoogleSheets, Sheets
from comporta.service.sources.portal import Portal, http_client, tls_context
from comporta.service.sources.ssrf_guard import AddressResolver, PinnedTransport
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.service.config import ServiceConfig
    from comporta.upstream.registry import Upstreams

ACCOUNTS_UPSTREAM = "accounts"
"""The upstream that processes accounts over HTTP; ``[upstreams.accounts]`` configures its policies."""

_LIMIT = "10/s"
_CALLS_MAX = 10


@dataclass(frozen=True)
class BatchComponents:
    """Replacements for what the configuration would select; ``None`` keeps the configured one."""

    processor: Processor | BlockingProcessor | None = None
    sheets: Sheets | None = None
    is_digital: Callable[[str], bool] | None = None


def open_batches(
    config: ServiceConfig, database: Database, upstreams: Upstreams, components: BatchComponents
) -> Batches:
    """Return batches that have not been started yet."""
    return Batches(
        database,
        components.sheets or _open_sheets(config, database, upstreams),
        config.batch,
        processor=components.processor or _open_processor(config, upstreams),
        is_digital=components.is_digital,
    )


def _open_sheets(config: ServiceConfig, database: Database, upstreams: Upstreams) -> Sheets:
    if config.sheets == "database":
        return DatabaseSheets(database)
    if config.sheets == "files":
        return LocalSheets(config.sheets_folder)
    batch = config.batch
    account = GoogleAccount(batch.google_credentials, endpoint=batch.google_endpoint)
    return GoogleSheets(account, database, BaseLimiter(GOOGLE_QUOTA, upstreams.store, "google_sheets"))


def _open_processor(config: ServiceConfig, upstreams: Upstreams) -> Processor | BlockingProcessor | None:
    batch = config.batch
    if batch.processor is not None:
        try:
            return load_processor(batch.processor)
        except (TypeError, ValueError) as error:
            raise batch.error_with_origin(error) from None
    if batch.address is None:
        return None
    upstream = upstreams.get(ACCOUNTS_UPSTREAM) or Upstream(
        ACCOUNTS_UPSTREAM, _LIMIT, timeout=batch.timeout, max_concurrent=_CALLS_MAX, state=upstreams.store
    )
    resolver = AddressResolver(allow_private=config.allow_private_addresses)
    transport = PinnedTransport(resolver, httpx2.AsyncHTTPTransport(verify=tls_context()))
    client = http_client(transport, batch.timeout)
    return UpstreamProcessor(Portal(upstream, batch.address, client, bytes_max=config.search.page_bytes_max))
