"""Makes the sources of a service from its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from ssl import SSLContext
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import httpx2

from comporta.service.sources import pcp, pncp
from comporta.service.sources.addresses import PinnedTransport, PrivateAddressError, Resolver
from comporta.service.sources.base import Source
from comporta.service.sources.fetching import Portal, client_for

if TYPE_CHECKING:
    from comporta.service.config import ServiceConfig
    from comporta.upstream.upstreams import Upstreams

MAKERS: Final[Mapping[str, Callable[[Portal], Source]]] = MappingProxyType(
    {pncp.NAME: pncp.Pncp, pcp.NAME: pcp.Pcp}
)
"""Every kind of source by its name, in the order in which one's notices go before another's."""

CHECK_SECONDS: Final = 1.0
"""How long the start waits to hear what a name means."""


def open_sources(config: ServiceConfig, upstreams: Upstreams) -> dict[str, Source]:
    """Return the sources by name; nothing is connected to yet."""
    trusted = httpx2.create_ssl_context(trust_env=False)  # takes a tenth of a second
    return {name: make(_portal(name, config, upstreams, trusted)) for name, make in MAKERS.items()}


def _portal(name: str, config: ServiceConfig, upstreams: Upstreams, trusted: SSLContext) -> Portal:
    resolver = Resolver(allow_private=config.allow_private_addresses)
    transport = PinnedTransport(resolver, httpx2.AsyncHTTPTransport(verify=trusted, trust_env=False))
    client = client_for(transport, config.search.page_timeout)
    return Portal(upstreams[name], config.addresses[name], client, bytes_max=config.search.page_bytes_max)


async def check_addresses(config: ServiceConfig) -> None:
    """Refuse to start with an address on a private network; a name that nobody knows yet may be known later.

    It is looked at again at every connection, so a slow answer need not hold up the start.
    """
    resolver = Resolver(allow_private=config.allow_private_addresses)
    named = {f"addresses.{name}": address for name, address in config.addresses.items()}
    if config.batch.address is not None:
        named["batch.address"] = config.batch.address
    for name, address in named.items():
        url = httpx2.URL(address)
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CHECK_SECONDS):
                try:
                    await resolver.addresses(url.host, url.port or 443)
                except PrivateAddressError as error:
                    raise PrivateAddressError(f"{name}: {error}") from None
