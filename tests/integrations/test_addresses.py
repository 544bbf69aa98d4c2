"""Whose request it is: what can be believed of a header that anybody can send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integrations.serving import scope_of

from comporta.integrations.addresses import HOPS_MAX, ClientAddress

ENTRY = st.text(st.sampled_from('0123456789abcdef.:[]%" ,xé'), max_size=40)


def client(peer: str | None, *lines: str, trusted: tuple[str, ...] = ("10.0.0.0/8", "fd00::/8")) -> str:
    scope = scope_of(None if peer is None else (peer, 443))
    scope["headers"] = [(b"x-forwarded-for", line.encode("latin-1")) for line in lines]
    return ClientAddress(trusted)(scope)


def test_client_address__no_trusted_proxies__is_where_the_connection_comes_from() -> None:
    assert client("192.0.2.1", "1.2.3.4", trusted=()) == "192.0.2.1"
    assert ClientAddress()(scope_of()) == "192.0.2.1"


@pytest.mark.parametrize("proxy", ["::ffff:10.0.0.1", "::ffff:10.0.0.0/104", "10.0.0.1"])
@pytest.mark.parametrize("peer", ["::ffff:10.0.0.1", "10.0.0.1"])
def test_client_address__proxy_written_as_ipv6__is_the_one_meant(proxy: str, peer: str) -> None:
    assert client(peer, "1.2.3.4", trusted=(proxy,)) == "1.2.3.4"
    assert client("192.0.2.1", "1.2.3.4", trusted=(proxy,)) == "192.0.2.1"


@pytest.mark.parametrize(
    ("peer", "lines", "found"),
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
def test_client_address__behind_proxies__is_the_first_from_the_right_that_is_not_ours(
    peer: str | None, lines: list[str], found: str
) -> None:
    assert client(peer, *lines) == found


def test_client_address__unix_socket__is_believed_only_if_told() -> None:
    assert client(None, "1.2.3.4", trusted=("10.0.0.0/8", "unix")) == "1.2.3.4"
    assert client(None, "9.9.9.9, 1.2.3.4, 10.1.1.1", trusted=("10.0.0.0/8", "unix")) == "1.2.3.4"
    assert client(None, trusted=("unix",)) == "unknown"
    assert client(None, "garbage", trusted=("unix",)) == "unknown"


def test_client_address__endless_row_of_proxies__is_followed_so_far_and_no_further() -> None:
    hops = [f"10.0.{number // 250}.{number % 250}" for number in range(1000)]
    assert client("10.0.0.1", ", ".join(hops)) == hops[-HOPS_MAX]


@given(st.lists(ENTRY, max_size=4))
def test_client_address__connection_not_from_a_proxy__no_header_changes_it(entries: list[str]) -> None:
    assert client("192.0.2.1", *entries) == "192.0.2.1"


@given(st.lists(ENTRY, max_size=4))
def test_client_address__proxy_that_adds_what_it_sees__nothing_before_it_changes_it(
    entries: list[str],
) -> None:
    assert client("10.0.0.1", ", ".join([*entries, "192.0.2.7"])) == "192.0.2.7"
    assert client("10.0.0.1", *entries, "192.0.2.7") == "192.0.2.7"


@given(st.lists(ENTRY, max_size=4))
def test_client_address__garbage_from_a_proxy__is_some_address(entries: list[str]) -> None:
    assert client("10.0.0.1", *entries)


@pytest.mark.parametrize(
    ("proxies", "error", "said"),
    [
        ("10.0.0.0/8", TypeError, "trusted_proxies must be a list of networks, got '10.0.0.0/8'"),
        (
            ["10.0.0.1/8"],
            ValueError,
            "trusted_proxies must be addresses, networks or 'unix', got '10.0.0.1/8'",
        ),
        (["proxy.example"], ValueError, "trusted_proxies must be addresses"),
        (["0.0.0.0/0"], ValueError, "trusted_proxies must not be everybody"),
        (["::/0"], ValueError, "trusted_proxies must not be everybody"),
        (["::ffff:0:0/96"], ValueError, "trusted_proxies must not be everybody"),
        ([10], TypeError, "trusted_proxies must be text such as '10.0.0.0/8', got 10"),
    ],
)
def test_client_address__proxies_that_make_no_sense__are_refused(
    proxies: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        ClientAddress(proxies)


@pytest.mark.parametrize(
    ("host", "trusted", "is_one"),
    [
        ("10.1.1.1", ("10.0.0.0/8",), True),
        ("192.0.2.1", ("10.0.0.0/8",), False),
        ("testclient", ("10.0.0.0/8", "unix"), False),
        (None, ("unix",), True),
        (None, ("10.0.0.0/8",), False),
        ("10.1.1.1", (), False),
    ],
)
def test_client_address__connection_of_a_proxy__is_told_from_others(
    host: str | None, trusted: tuple[str, ...], is_one: bool
) -> None:
    scope = {"client": None if host is None else (host, 1), "headers": [(b"x-forwarded-for", b"10.2.2.2")]}
    assert ClientAddress(trusted).is_proxy(scope) is is_one
