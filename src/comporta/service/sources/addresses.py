"""Which addresses a source may be reached at: the public network, unless the configuration says otherwise.

A name is resolved here and nowhere else, the addresses are looked at, and the connection goes to the very
address that was looked at: a name that means something else a moment later (DNS rebinding) gains nothing.
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

REMEMBERED_SECONDS: Final = 30.0
NAMES_MAX: Final = 100
ADDRESSES_MAX: Final = 4
"""How many addresses of a name are tried."""

_NAT64 = IPv6Network("64:ff9b::/96")


class PrivateAddressError(ValueError):
    """A source is configured at, or was moved to, an address that is not on the public network."""


def is_public(text: str) -> bool:
    """Whether an address is on the public network; one that carries another in it, both."""
    found = ip_address(text.partition("%")[0])
    return all(one.is_global and not one.is_multicast for one in _with_embedded(found))


def _with_embedded(address: IPv4Address | IPv6Address) -> Iterator[IPv4Address | IPv6Address]:
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


class Resolver:
    """Finds the addresses of names, on threads of its own, and refuses private ones unless allowed."""

    def __init__(self, *, allow_private: bool) -> None:
        self._allow_private = allow_private
        self._looking: dict[tuple[str, int], Future[list[str]]] = {}
        self._known: dict[tuple[str, int], tuple[float, list[str]]] = {}

    async def addresses(self, host: str, port: int) -> list[str]:
        """Return where to connect to; raises ``OSError`` for a name that nobody knows."""
        until, found = self._known.get((host, port), (0.0, []))
        if time.monotonic() >= until:
            found = await asyncio.wrap_future(self._look_up(host, port))
            if len(self._known) >= NAMES_MAX:
                self._known.clear()
            self._known[host, port] = time.monotonic() + REMEMBERED_SECONDS, found
        self._check(host, found)
        return found

    def _look_up(self, host: str, port: int) -> Future[list[str]]:
        """Begin to look a name up, or find that under way; a look-up that hangs keeps nobody from ending."""
        future = self._looking.get((host, port))
        if future is None:
            future = self._looking[host, port] = Future()
            future.set_running_or_notify_cancel()
            future.add_done_callback(lambda _: self._looking.pop((host, port), None))
            Thread(target=_answered, args=(future, host, port), name="comporta-names", daemon=True).start()
        return future

    def _check(self, host: str, found: list[str]) -> None:
        refused = [] if self._allow_private else [one for one in found if not is_public(one)]
        if refused:
            raise PrivateAddressError(
                f"{host:.100} must be on the public network unless allow_private_addresses is set, "
                f"got {refused[0]}"
            )


def _answered(future: Future[list[str]], host: str, port: int) -> None:
    try:
        future.set_result(_looked_up(host, port))
    except Exception as error:  # whoever waits gets it
        future.set_exception(error)


def _looked_up(host: str, port: int) -> list[str]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"this is no name: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))[:ADDRESSES_MAX]


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Connects to an address that the resolver has looked at; the name stays in ``Host`` and in TLS."""

    def __init__(self, resolver: Resolver, inner: httpx2.AsyncBaseTransport) -> None:
        self._resolver = resolver
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to the first of the addresses that can be connected to."""
        url = request.url
        try:
            found = await self._resolver.addresses(
                url.host, url.port or (443 if url.scheme == "https" else 80)
            )
        except OSError as error:
            raise httpx2.ConnectError(
                f"{url.host:.100} cannot be resolved: {error}", request=request
            ) from error
        for address in found[:-1]:
            try:
                return await self._inner.handle_async_request(_pinned(request, address))
            except httpx2.ConnectError:
                continue
        return await self._inner.handle_async_request(_pinned(request, found[-1]))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _pinned(request: httpx2.Request, address: str) -> httpx2.Request:
    extensions: dict[str, Any] = {**request.extensions, "sni_hostname": request.url.host}
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions=extensions,
    )
