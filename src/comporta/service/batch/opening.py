"""Makes the batches of a service from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx2

from comporta.limits.limiter import BaseLimiter
from comporta.pipeline.sinks.google import GoogleAccount
from comporta.service.batch.batches import Batches
from comporta.service.batch.local import LocalSheets
from comporta.service.batch.processing import (
    BlockingProcessor,
    Processor,
    UpstreamProcessor,
    load_processor,
)
from comporta.service.batch.sheets import GOOGLE_QUOTA, GoogleSheets, Sheets
from comporta.service.sources.addresses import PinnedTransport, Resolver
from comporta.service.sources.fetching import Portal, client_for
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.database.base import Database
    from comporta.service.config import ServiceConfig
    from comporta.upstream.upstreams import Upstreams

UPSTREAM = "accounts"
"""The upstream that is asked about accounts; ``[upstreams.accounts]`` says how it may be used."""

_LIMIT = "10/s"
_CALLS_MAX = 10


@dataclass(frozen=True)
class BatchPlugs:
    """What a program may put in the place of what the configuration says."""

    processor: Processor | BlockingProcessor | None = None
    sheets: Sheets | None = None
    is_digital: Callable[[str], bool] | None = None


def open_batches(
    config: ServiceConfig, database: Database, upstreams: Upstreams, plugs: BatchPlugs
) -> Batches:
    """Return batches that do nothing yet."""
    return Batches(
        database,
        plugs.sheets or _sheets(config, database, upstreams),
        config.batch,
        processor=plugs.processor or _processor(config, upstreams),
        is_digital=plugs.is_digital,
    )


def _sheets(config: ServiceConfig, database: Database, upstreams: Upstreams) -> Sheets:
    batch = config.batch
    if batch.google_credentials is None and batch.google_endpoint is None:
        return LocalSheets(config.sheets)
    account = GoogleAccount(batch.google_credentials, endpoint=batch.google_endpoint)
    return GoogleSheets(account, database, BaseLimiter(GOOGLE_QUOTA, upstreams.store, "google_sheets"))


def _processor(config: ServiceConfig, upstreams: Upstreams) -> Processor | BlockingProcessor | None:
    batch = config.batch
    if batch.processor is not None:
        try:
            return load_processor(batch.processor)
        except (TypeError, ValueError) as error:
            raise batch.blamed(error) from None
    if batch.address is None:
        return None
    upstream = upstreams.get(UPSTREAM) or Upstream(
        UPSTREAM, _LIMIT, timeout=batch.timeout, max_concurrent=_CALLS_MAX, state=upstreams.store
    )
    resolver = Resolver(allow_private=config.allow_private_addresses)
    client = client_for(PinnedTransport(resolver, httpx2.AsyncHTTPTransport(trust_env=False)), batch.timeout)
    return UpstreamProcessor(Portal(upstream, batch.address, client, bytes_max=config.search.page_bytes_max))
