"""The check of ``comporta doctor --portals``: queries each portal of the service once.

It neither reads nor writes the state that workers share: the request does not count towards any limit or
breaker.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from comporta.cli.doctor_checks import Finding, fail, ok
from comporta.outcome import error_summary
from comporta.pipeline.run.report import quantity
from comporta.stores.memory import MemoryStore
from comporta.upstream.upstream import Upstream

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.service.sources.base import NoticeSource

MODALITY: Final = 6
UF: Final = "SP"
"""The query: the first page of a frequent modality in a large state, for the previous day."""


def check_portals(config: ServiceConfig) -> list[Finding]:
    """Query all portals at once; return one finding for each."""
    return asyncio.run(_ask_portals(config))


async def _ask_portals(config: ServiceConfig) -> list[Finding]:
    from comporta.service.sources.factory import open_sources  # noqa: PLC0415 - an extra

    store = MemoryStore()
    upstreams = {
        name: Upstream(name, "1/s", retry=False, breaker=False, timeout=None, state=store)
        for name in config.addresses
    }
    sources = open_sources(config, upstreams)
    return await asyncio.gather(
        *(_ask_portal(source, config.addresses[name]) for name, source in sources.items())
    )


async def _ask_portal(source: NoticeSource, address: str) -> Finding:
    day, began = datetime.now(UTC).date() - timedelta(days=1), time.monotonic()
    [listing] = source.listings(day, day, MODALITY, [UF])
    try:
        page = await source.fetch_page(listing, 1)
    except Exception as error:
        text = f"{address}: {error_summary(error)}; check service.addresses.{source.name} and the network"
        return fail(source.name, text)
    finally:
        await source.aclose()
    seconds = time.monotonic() - began
    notices = quantity(len(page.notices), "notice")
    text = f"{address}: {notices} of {day} on page 1 of {page.page_count}, {seconds:.1f} s"
    return ok(source.name, text)
