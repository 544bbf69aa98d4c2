"""The client's address: which forwarded headers are credible."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.apps import scope_of

from comporta.integrations.client_ip import HOPS_MAX, ClientAddress

ENTRY = st.text(st.sampled_from('0123456789abcdef.:[]%" ,xé'), max_size=40)


def client(peer: str | None, *lines: str, trusted: tuple[str, ...] = ("10.0.0.0/8", "fd00::/8")) -> str:
    scope = scope_of(None if peer is None else (peer, 443))
    scope["headers"] = [(b"x-forwarded-for", line.encode("latin-1")) for line in lines]
    return ClientAddress(trusted)(scope)


def test_client_address__no_trusted_proxies__is_the_peer() -> None:
    assert client("192.0.2.1", "1.2.3.4", trusted=()) == "192.0.2.1"
    assert ClientAddress()(scope_of()) == "192.0.2.1"


@pytest.mark.parametrize("proxy", ["::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "10.0.0.1"])
@pytest.mark.parametrize("peer", ["::ffff:10.0.0.1", "10.0.0.1"])
def test_client_address__proxy_as_mapped_ipv6__is_trusted(proxy: str, peer: str) -> None:
    assert client(peer, "1.2.3.4", trusted=(proxy,)) == "1.2.3.4"
    assert client("192.0.2.1", "1.2.3.4", trusted=(proxy,)) == "192.0.2.1"


@pytest.mark.parametrize(
    ("peer", "lines", "expected"),
    [
        ("192.0.2.1", ["1.2.3.4"], "192.0.2.1"),
        ("10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4, 10.9.9.9"], "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6", "1.2.3.4,10.9.9.9", " 10.1.1.1 "], "1.2.3.4"),
        ("10.0.0.1", ["10.2.2.2, 10.3.3.3"], "10.2.2.2"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["1.2.3.4, garbage, 10.4.4.4"], "10.4.4.4"),
        ("10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4"),
        ("10.0.0.1", ['"[2001:db8:1:2:3::4]:80"'], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["2001:db8:1:2:3:4:5:6"], "2001:db8:1:2::/64"),
        ("10.0.0.1", ["fe80::1%eth0"], "fe80::/64"),
        ("10.0.0.1", ["[::1"], "::/64"),
        ("10.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4"),
        ("::ffff:10.0.0.1", ["1.2.3.4"], "1.2.3.4"),
        ("fd00::1", ["1.2.3.4, 10.5.5.5"], "1.2.3.4"),
        ("2001:db8::1", ["1.2.3.4"], "2001:db8::/64"),
        ("10.0.0.1", ["٣.2.3.4".encode().decode("latin-1")], "10.0.0.1"),
        ("10.0.0.1", ["010.2.3.4"], "10.0.0.1"),
        ("testclient", ["1.2.3.4"], "testclient"),
        (None, ["1.2.3.4"], "unknown"),
    ],
)
def test_client_address__behind_proxies__is_the_rightmost_untrusted_address(
    peer: str | None, lines: list[str], expected: str
) -> None:
    assert client(peer, *lines) == expected


def test_client_address__unix_socket__is_trusted_only_if_configured() -> None:
    assert client(None, "1.2.3.4", trusted=("10.0.0.0/8", "unix")) == "1.2.3.4"
    assert client(None, "9.9.9.9, 1.2.3.4, 10.1.1.1", trusted=("10.0.0.0/8", "unix")) == "1.2.3.4"
    assert client(None, trusted=("unix",)) == "unknown"
    assert client(None, "garbage", trusted=("unix",)) == "unknown"


def test_client_address__many_proxies__follows_at_most_32() -> None:
    hops = [f"10.0.{number // 250}.{number % 250}" for number in range(1000)]
    assert client("10.0.0.1", ", ".join(hops)) == hops[-HOPS_MAX]


@given(st.lists(ENTRY, max_size=4))
def test_client_address__untrusted_peer__ignores_every_header(entries: list[str]) -> None:
    assert client("192.0.2.1", *entries) == "192.0.2.1"


@given(st.lists(ENTRY, max_size=4))
def test_client_address__trusted_proxy__ignores_entries_left_of_the_client(
    entries: list[str],
) -> None:
    assert client("10.0.0.1", ", ".join([*entries, "192.0.2.7"])) == "192.0.2.7"
    assert client("10.0.0.1", *entries, "192.0.2.7") == "192.0.2.7"


@given(st.lists(ENTRY, max_size=4))
def test_client_address__garbage_header__still_returns_a_key(entries: list[str]) -> None:
    assert client("10.0.0.1", *entries)


@pytest.mark.parametrize(
    ("proxies", "error", "message"),
    [
        ("10.0.0.0/8", TypeError, "trusted_proxies must be a list of networks, got '10.0.0.0/8'"),
        (
            ["10.0.0.1/8"],
            ValueError,
            "trusted_proxies must be addresses, networks or 'unix', got '10.0.0.1/8'",
        ),
        (["proxy.example"], ValueError, "trusted_proxies must be addresses"),
        (["0.0.0.0/0"], ValueError, "trusted_proxies must not be '0.0.0.0/0': any client could forge"),
        (["::/0"], ValueError, "trusted_proxies must not be '::/0': any client could forge"),
        (
            ["::ffff:0:0/96"],
            ValueError,
            "trusted_proxies must not be '::ffff:0:0/96': any client could forge",
        ),
        ([10], TypeError, "trusted_proxies must be text such as '10.0.0.0/8', got 10"),
    ],
)
def test_client_address__invalid_proxies__raise(proxies: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ClientAddress(proxies)


@pytest.mark.parametrize(
    ("host", "trusted", "expected"),
    [
        ("10.1.1.1", ("10.0.0.0/8",), True),
        ("192.0.2.1", ("10.0.0.0/8",), False),
        ("testclient", ("10.0.0.0/8", "unix"), False),
        (None, ("unix",), True),
        (None, ("10.0.0.0/8",), False),
        ("10.1.1.1", (), False),
    ],
)
def test_client_address__is_trusted_proxy__recognises_proxies(
    host: str | None, trusted: tuple[str, ...], expected: bool
) -> None:
    scope = {"client": None if host is None else (host, 1), "headers": [(b"x-forwarded-for", b"10.2.2.2")]}
    assert ClientAddress(trusted).is_trusted_proxy(scope) is expected
