"""The address of the client behind an HTTP request, with trusted proxies taken into account.

Any client can send ``X-Forwarded-For``. Each proxy appends, at the right end, the address that connected to
it. An entry is therefore credible only if a trusted proxy wrote it: the search goes from right to left and
ends at the first address that is not a trusted proxy, which is the client. No other header is read.

This module knows nothing of limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

HOPS_MAX: Final = 32
"""The search follows at most this many proxies; the address it reaches then counts as the client."""

UNKNOWN_CLIENT: Final = "unknown"
"""The key of all clients whose address is unknown: they share one limit, instead of having none."""

UNIX: Final = "unix"
"""The entry of ``trusted_proxies`` for connections through a Unix socket, which have no address."""

_ADDRESS_CACHE_SIZE = 4096
"""This many parsed addresses are cached, because the same clients return."""

_IPV6_PREFIX = 64
_MAPPED_PREFIX = 96

Address = IPv4Address | IPv6Address


class ClientAddress:
    """A key function that returns the client's address; for IPv6, its /64 network.

    A provider usually assigns a /64 network to one customer, who could otherwise use any number of addresses.

    ``trusted_proxies`` are addresses, networks (``"10.0.0.0/8"``) or ``"unix"``. Without any, the client is
    the peer of the connection, regardless of headers. This class reads an ASGI scope; its subclasses read the
    requests of other interfaces.
    """

    def __init__(self, trusted_proxies: Iterable[str] = ()) -> None:
        if isinstance(trusted_proxies, str):
            raise TypeError(f"trusted_proxies must be a list of networks, got {trusted_proxies!r:.100}")
        proxies = list(trusted_proxies)
        self._networks = [_parse_network(text) for text in proxies if text != UNIX]
        self._trusts_unix = UNIX in proxies

    def __call__(self, scope: Any) -> str:
        """Return the key for the client of an ASGI scope, or of a request that is a similar mapping."""
        host = self._peer(scope)
        if host and not self._networks:
            return _peer_key(host)
        address = _parse_address(host)
        if address is None and (host or not self._trusts_unix):
            return host or UNKNOWN_CLIENT
        if self._is_trusted(address):
            address = self._first_untrusted(address, _rightmost_entries(self._forwarded_for(scope)))
        return UNKNOWN_CLIENT if address is None else _address_key(address)

    def is_trusted_proxy(self, scope: Any) -> bool:
        """Return whether the peer of the connection is a trusted proxy, whose headers are credible."""
        host = self._peer(scope)
        address = _parse_address(host)
        return self._trusts_unix and not host if address is None else self._is_trusted(address)

    def _peer(self, scope: Any) -> str:
        """Return the address of the peer of the connection; "" if it has none."""
        client = scope.get("client")
        return client[0] if client else ""

    def _forwarded_for(self, scope: Any) -> str:
        """Return the lines of ``X-Forwarded-For``, joined by commas."""
        return ",".join(
            value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"
        )

    def _first_untrusted(self, address: Address | None, entries: Iterable[str]) -> Address | None:
        for text in entries:
            entry = _parse_address(text)
            if entry is None:
                break  # the trusted proxy that wrote it does not know the address
            address = entry
            if not self._is_trusted(address):
                break
        return address

    def _is_trusted(self, address: Address | None) -> bool:
        return address is None or any(address in network for network in self._networks)


def _parse_network(text: str) -> Any:
    if not isinstance(text, str):  # ip_network() would accept an integer as an address
        raise TypeError(f"trusted_proxies must be text such as '10.0.0.0/8', got {text!r:.100}")
    try:
        network = _as_ipv4(ip_network(text))
    except ValueError as error:
        raise ValueError(
            f"trusted_proxies must be addresses, networks or 'unix', got {text!r:.100}"
        ) from error
    if network.prefixlen == 0:
        raise ValueError(f"trusted_proxies must not be {text!r}: any client could forge its address")
    return network


def _as_ipv4(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Convert an IPv4-mapped IPv6 network to IPv4, as ``_parse_address`` does with addresses."""
    if isinstance(network, IPv4Network) or network.prefixlen < _MAPPED_PREFIX:
        return network
    mapped = network.network_address.ipv4_mapped
    return network if mapped is None else IPv4Network((mapped, network.prefixlen - _MAPPED_PREFIX))


def _rightmost_entries(text: str) -> list[str]:
    """Return the entries of ``X-Forwarded-For`` from right to left, at most ``HOPS_MAX``."""
    return text.rsplit(",", HOPS_MAX)[: -HOPS_MAX - 1 : -1]


@lru_cache(maxsize=_ADDRESS_CACHE_SIZE)
def _parse_address(text: str) -> Address | None:
    """Parse an address with or without port, brackets, quotes or zone; IPv4-mapped IPv6 becomes IPv4."""
    text = text.strip(' \t"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


@lru_cache(maxsize=_ADDRESS_CACHE_SIZE)
def _peer_key(host: str) -> str:
    """Return the key of the peer of a connection, where no proxy is trusted."""
    address = _parse_address(host)
    return host if address is None else _address_key(address)


def _address_key(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _IPV6_PREFIX), strict=False))
