"""Guards against server-side request forgery: sources must be on the public network unless configured.

It resolves each host name, checks all its addresses and connects to a checked address. A name that resolves
to another address a moment later (DNS rebinding) therefore gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from threading import Thread
from typing import Any, Final

import httpx2

CACHE_SECONDS: Final = 30.0
CACHED_NAMES_MAX: Final = 100
ADDRESSES_MAX: Final = 4
"""How many addresses of a name are tried."""

_NAT64 = IPv6Network("64:ff9b::/96")


class PrivateAddressError(ValueError):
    """A source is configured at, or its name resolves to, an address that is not public."""


def is_public_address(text: str) -> bool:
    """Whether an address is on the public network, and also any IPv4 address embedded in it."""
    address = ip_address(text.partition("%")[0])
    return all(each.is_global and not each.is_multicast for each in _embedded_addresses(address))


def _embedded_addresses(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
            return
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield address.teredo[1]
        if address in _NAT64:
            yield IPv4Address(int(address) & 0xFFFFFFFF)
    yield address


class AddressResolver:
    """Resolves host names on threads of its own and refuses private addresses unless they are allowed."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._pending: dict[tuple[str, int], Future[list[str]]] = {}
        self._cache: dict[tuple[str, int], tuple[float, list[str]]] = {}

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; raise ``OSError`` if it cannot be resolved."""
        expires, addresses = self._cache.get((host, port), (0.0, []))
        if time.monotonic() >= expires:
            addresses = await asyncio.wrap_future(self._start_lookup(host, port))
            if len(self._cache) >= CACHED_NAMES_MAX:
                self._cache.clear()
            self._cache[host, port] = time.monotonic() + CACHE_SECONDS, addresses
        self._check_public(host, addresses)
        return addresses

    def _start_lookup(self, host: str, port: int) -> Future[list[str]]:
        """Start a lookup or join a pending one; its daemon thread never delays the end of the process."""
        future = self._pending.get((host, port))
        if future is None:
            future = self._pending[host, port] = Future()
            future.set_running_or_notify_cancel()
            future.add_done_callback(lambda _: self._pending.pop((host, port), None))
            Thread(target=_run_lookup, args=(future, host, port), name="comporta-names", daemon=True).start()
        return future

    def _check_public(self, host: str, addresses: list[str]) -> None:
        refused = [] if self._allow_private else [each for each in addresses if not is_public_address(each)]
        if refused:
            raise PrivateAddressError(
                f"{host:.100} must be on the public network unless allow_private_addresses is set, "
                f"got {refused[0]}"
            )


def _run_lookup(future: Future[list[str]], host: str, port: int) -> None:
    try:
        future.set_result(_lookup(host, port))
    except Exception as error:  # all who wait for the lookup get it
        future.set_exception(error)


def _lookup(host: str, port: int) -> list[str]:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"invalid host name: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))[:ADDRESSES_MAX]


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Connects to an address that the resolver has checked; ``Host`` and TLS still use the name."""

    def __init__(self, resolver: AddressResolver, inner: httpx2.AsyncBaseTransport) -> None:
        self._resolver = resolver
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to the first address that accepts a connection."""
        url = request.url
        try:
            addresses = await self._resolver.resolve(
                url.host, url.port or (443 if url.scheme == "https" else 80)
            )
        except OSError as error:
            raise httpx2.ConnectError(
                f"{url.host:.100} cannot be resolved: {error}", request=request
            ) from error
        for address in addresses[:-1]:
            try:
                return await self._inner.handle_async_request(_pinned_request(request, address))
            except httpx2.ConnectError:
                continue
        return await self._inner.handle_async_request(_pinned_request(request, addresses[-1]))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _pinned_request(request: httpx2.Request, address: str) -> httpx2.Request:
    extensions: dict[str, Any] = {**request.extensions, "sni_hostname": request.url.host}
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=extensions,
    )
