"""The guard against private addresses, at startup and at every connection."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx2
import pytest
from tests.search.rig import load_config

from comporta.service.container import open_container
from comporta.service.sources.factory import check_addresses
from comporta.service.sources.ssrf_guard import (
    CACHED_NAMES_MAX,
    AddressResolver,
    PinnedTransport,
    PrivateAddressError,
    is_public_address,
)
from comporta.settings import BatchSettings
from comporta.testing import ProcurementServer, SimulatedUpstream


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("10.0.0.1", False),
        ("127.0.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - must be refused
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("2002:0a00:0001::1", False),
        ("2001:0:4136:e378:8000:63bf:f5ff:fffe", False),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::808:808", True),
    ],
)
def test_address__private_or_embedding_a_private_one__is_not_public(address: str, public: bool) -> None:
    assert is_public_address(address) is public


def test_resolver__private_name__is_refused_unless_allowed() -> None:
    async def scenario() -> None:
        strict, easy = AddressResolver(allow_private=False), AddressResolver(allow_private=True)
        with pytest.raises(PrivateAddressError, match="unless allow_private_addresses is set, got"):
            await strict.resolve("localhost", 80)
        assert "127.0.0.1" in await easy.resolve("localhost", 80)
        strict._cache["good.example", 80] = time.monotonic() + 60, ["8.8.8.8"]
        assert await strict.resolve("good.example", 80) == ["8.8.8.8"]
        strict._cache["good.example", 80] = time.monotonic() + 60, ["8.8.8.8", "10.0.0.1"]
        with pytest.raises(PrivateAddressError):
            await strict.resolve("good.example", 80)
        easy._cache.update({(f"name-{n}", 80): (0.0, []) for n in range(CACHED_NAMES_MAX)})
        await easy.resolve("127.0.0.1", 81)
        assert len(easy._cache) == 1
        first, second = easy._start_lookup("localhost", 82), easy._start_lookup("localhost", 82)
        assert first.result(60) == second.result(60)

    asyncio.run(scenario())


def test_transport__host_name__connects_to_the_checked_address() -> None:
    async def scenario() -> None:
        with SimulatedUpstream() as upstream:
            resolver = AddressResolver(allow_private=True)
            until = time.monotonic() + 60
            resolver._cache["portal.example", upstream.port] = until, ["127.0.0.2", "127.0.0.1"]
            resolver._cache["moved.example", 80] = until, ["127.0.0.1"]
            transport = PinnedTransport(resolver, httpx2.AsyncHTTPTransport())
            async with httpx2.AsyncClient(transport=transport) as client:
                answer = await client.get(f"http://portal.example:{upstream.port}/")
                assert (answer.status_code, upstream.accepted) == (200, 1)
                with pytest.raises(httpx2.ConnectError, match="cannot be resolved"):
                    await client.get("http://no..name/")
                resolver._allow_private = False
                with pytest.raises(PrivateAddressError):
                    await client.get("http://moved.example/")

    asyncio.run(scenario())


def test_startup__source_on_a_private_network__is_refused_by_name(tmp_path: Path) -> None:
    async def scenario() -> None:
        with ProcurementServer() as server:
            config = load_config(tmp_path, server, service="client_limit = false")
            await check_addresses(config)
            object.__setattr__(config, "allow_private_addresses", False)
            with pytest.raises(
                PrivateAddressError, match=r"addresses\.pncp: 127\.0\.0\.1 must be on the public"
            ):
                async with open_container(config):
                    raise AssertionError("it must not start")
            object.__setattr__(config, "addresses", {"pncp": "https://no..name"})
            await check_addresses(config)
            object.__setattr__(config, "batch", BatchSettings(address="http://127.0.0.1/accounts"))
            with pytest.raises(
                PrivateAddressError, match=r"batch\.address: 127\.0\.0\.1 must be on the public"
            ):
                await check_addresses(config)

    asyncio.run(scenario())
