"""Makes the sources of a service from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


def open_sources(config: ServiceConfig, upstreams: Upstreams) -> dict[str, Source]:
    """Return the sources by name; nothing is connected to yet."""
    return {name: make(_portal(name, config, upstreams)) for name, make in MAKERS.items()}


def _portal(name: str, config: ServiceConfig, upstreams: Upstreams) -> Portal:
    resolver = Resolver(allow_private=config.allow_private_addresses)
    transport = PinnedTransport(resolver, httpx2.AsyncHTTPTransport(trust_env=False))
    client = client_for(transport, config.search.page_timeout)
    return Portal(upstreams[name], config.addresses[name], client, bytes_max=config.search.page_bytes_max)


async def check_addresses(config: ServiceConfig) -> None:
    """Refuse to start with an address on a private network; a name that nobody knows yet may be later."""
    resolver = Resolver(allow_private=config.allow_private_addresses)
    try:
        for name, address in config.addresses.items():
            url = httpx2.URL(address)
            try:
                await resolver.addresses(url.host, url.port or 443)
            except PrivateAddressError as error:
                raise PrivateAddressError(f"addresses.{name}: {error}") from None
            except OSError:
                continue
    finally:
        resolver.close()
