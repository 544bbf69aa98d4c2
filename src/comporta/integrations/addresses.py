"""Whose request it is, by address, behind proxies that may or may not be ours.

Anybody can send ``X-Forwarded-For``. Each proxy adds, at the right end, the address it was called from; so an
entry can be believed only if whoever wrote it can, and the walk from the right ends at the first address that
is none of the trusted proxies: that is the client. No other header is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

HOPS_MAX: Final = 32
"""How many proxies in a row are followed; the one reached then counts as the client."""

UNKNOWN: Final = "unknown"
"""The key of all whose address nobody knows: they share one limit, rather than having none."""

UNIX: Final = "unix"
"""Among the trusted proxies: whoever calls through a Unix socket, and so has no address."""

_KNOWN = 4096
"""How many addresses are kept as they were read: the same clients come again."""

_IPV6_PREFIX = 64
_MAPPED_PREFIX = 96

Address = IPv4Address | IPv6Address


class ClientAddress:
    """A key function: the client's address, of IPv6 the network of /64 that one customer has.

    ``trusted_proxies`` are addresses and networks (``"10.0.0.0/8"``), or ``"unix"``. With none, the address
    that the connection comes from is the client's, whatever its headers say.
    """

    def __init__(self, trusted_proxies: Iterable[str] = ()) -> None:
        if isinstance(trusted_proxies, str):
            raise TypeError(f"trusted_proxies must be a list of networks, got {trusted_proxies!r:.100}")
        wanted = list(trusted_proxies)
        self._networks = [_network(text) for text in wanted if text != UNIX]
        self._unix = UNIX in wanted

    def __call__(self, scope: Mapping[str, Any]) -> str:
        """Return the key for the client of an ASGI scope, or of a request that is a mapping like it."""
        client = scope.get("client")
        host = client[0] if client else ""
        if host and not self._networks:
            return _key_of(host)
        address = _address(host)
        if address is None and (host or not self._unix):
            return host or UNKNOWN
        if self._trusts(address):
            address = self._walked(address, _forwarded(scope))
        return UNKNOWN if address is None else _key(address)

    def is_proxy(self, scope: Mapping[str, Any]) -> bool:
        """Whether the connection itself is a trusted proxy's: then what it says of its client is believed."""
        client = scope.get("client")
        host = client[0] if client else ""
        address = _address(host)
        return self._unix and not host if address is None else self._trusts(address)

    def _walked(self, address: Address | None, entries: Iterable[str]) -> Address | None:
        for text in entries:
            nearer = _address(text)
            if nearer is None:
                break  # a trusted proxy wrote it, and says that it does not know
            address = nearer
            if not self._trusts(address):
                break
        return address

    def _trusts(self, address: Address | None) -> bool:
        return address is None or any(address in network for network in self._networks)


def _network(text: str) -> Any:
    if not isinstance(text, str):  # a number would be an address
        raise TypeError(f"trusted_proxies must be text such as '10.0.0.0/8', got {text!r:.100}")
    try:
        network = _as_ipv4(ip_network(text))
    except ValueError as error:
        raise ValueError(
            f"trusted_proxies must be addresses, networks or 'unix', got {text!r:.100}"
        ) from error
    if network.prefixlen == 0:
        raise ValueError(f"trusted_proxies must not be everybody: then anybody is anybody, got {text!r}")
    return network


def _as_ipv4(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """Return IPv4 written as IPv6 as what it is, as addresses are."""
    if isinstance(network, IPv4Network) or network.prefixlen < _MAPPED_PREFIX:
        return network
    mapped = network.network_address.ipv4_mapped
    return network if mapped is None else IPv4Network((mapped, network.prefixlen - _MAPPED_PREFIX))


def _forwarded(scope: Mapping[str, Any]) -> list[str]:
    """Return the entries of ``X-Forwarded-For`` from right to left."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
    return ",".join(lines).rsplit(",", HOPS_MAX)[: -HOPS_MAX - 1 : -1]


@lru_cache(maxsize=_KNOWN)
def _address(text: str) -> Address | None:
    """Read an address with or without port, brackets, quotes or zone; IPv4 written as IPv6 is IPv4."""
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


@lru_cache(maxsize=_KNOWN)
def _key_of(host: str) -> str:
    """Return the key of whoever connects, where no proxy is believed."""
    address = _address(host)
    return host if address is None else _key(address)


def _key(address: Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _IPV6_PREFIX), strict=False))
