"""Opens the sources of a service from its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import httpx2

from comporta.service.sources import pcp, pncp
from comporta.service.sources.base import NoticeSource
from comporta.service.sources.portal import Portal, http_client, tls_context
from comporta.service.sources.ssrf_guard import AddressResolver, PinnedTransport, PrivateAddressError

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.upstream.upstream import Upstream

SOURCE_TYPES: Final[Mapping[str, Callable[[Portal, int], NoticeSource]]] = MappingProxyType(
    {pncp.NAME: pncp.PncpSource, pcp.NAME: pcp.PcpSource}
)
"""The sources by name. If several have the same notice, the first one here wins."""

CHECK_TIMEOUT_SECONDS: Final = 1.0
"""How long startup waits for a name to be resolved."""


def open_sources(config: ServiceConfig, upstreams: Mapping[str, Upstream]) -> dict[str, NoticeSource]:
    """Return the sources by name; nothing connects yet."""
    pages_max = {pncp.NAME: config.search.pages_max, pcp.NAME: config.search.pcp_pages_max}
    return {
        name: source_type(_open_portal(name, config, upstreams), pages_max[name])
        for name, source_type in SOURCE_TYPES.items()
    }


def _open_portal(name: str, config: ServiceConfig, upstreams: Mapping[str, Upstream]) -> Portal:
    resolver = AddressResolver(allow_private=config.allow_private_addresses)
    transport = PinnedTransport(resolver, httpx2.AsyncHTTPTransport(verify=tls_context()))
    client = http_client(transport, config.search.page_timeout)
    return Portal(upstreams[name], config.addresses[name], client, bytes_max=config.search.page_bytes_max)


async def check_addresses(config: ServiceConfig) -> None:
    """Raise ``PrivateAddressError`` if a configured address is on a private network.

    A name that cannot be resolved now is accepted: every connection checks it again.
    """
    resolver = AddressResolver(allow_private=config.allow_private_addresses)
    addresses = {f"addresses.{name}": address for name, address in config.addresses.items()}
    if config.batch.address is not None:
        addresses["batch.address"] = config.batch.address
    for name, address in addresses.items():
        url = httpx2.URL(address)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                try:
                    await resolver.resolve(url.host, url.port or 443)
                except PrivateAddressError as error:
                    raise PrivateAddressError(f"{name}: {error}") from None
