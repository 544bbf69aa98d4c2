"""Transports, adapters and middlewares have the types that their clients expect; mypy checks this file."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

import aiohttp
import httpx
import httpx2
import requests
from requests.adapters import HTTPAdapter

from comporta import Upstream
from comporta.testing import SimulatedUpstream


def test_types__transports__are_those_of_their_client(simulated: SimulatedUpstream) -> None:
    upstream = Upstream("typed", "1000/s", state=f"memory://{uuid.uuid4().hex}")
    blocking = upstream.sync.transport()
    assert_type(blocking, httpx2.BaseTransport)
    with httpx2.Client(transport=blocking, trust_env=False) as client:
        assert client.get(simulated.url).status_code == 200
    older = upstream.sync.transport(httpx.HTTPTransport(), client="httpx", buffer_body=1000)
    assert_type(older, httpx.BaseTransport)
    with httpx.Client(transport=older, trust_env=False) as older_client:
        assert older_client.get(simulated.url).status_code == 200
    assert_type(upstream.transport(httpx2.AsyncHTTPTransport()), httpx2.AsyncBaseTransport)
    assert_type(upstream.transport(client="httpx"), httpx.AsyncBaseTransport)


def test_types__adapter_with_pool_sizes__is_an_http_adapter(simulated: SimulatedUpstream) -> None:
    upstream = Upstream("typed", "1000/s", state=f"memory://{uuid.uuid4().hex}")
    adapter = upstream.sync.adapter(pool_connections=3, pool_maxsize=4, pool_block=True)
    assert isinstance(adapter, HTTPAdapter)
    assert adapter.poolmanager.connection_pool_kw["maxsize"] == 4
    with requests.Session() as session:
        session.mount("http://", adapter)
        assert session.get(simulated.url, timeout=(5, 5)).status_code == 200


def test_types__middleware__is_one_of_aiohttp(simulated: SimulatedUpstream) -> None:
    upstream = Upstream("typed", "1000/s", state=f"memory://{uuid.uuid4().hex}")
    middleware = upstream.middleware(buffer_body=1000)
    assert_type(middleware, aiohttp.ClientMiddlewareType)

    async def main() -> int:
        async with (
            aiohttp.ClientSession(middlewares=[middleware]) as session,
            session.get(simulated.url) as response,
        ):
            return response.status

    assert asyncio.run(main()) == 200


def test_types__view_and_guard__keep_their_types() -> None:
    upstream = Upstream("typed", "1000/s", state=f"memory://{uuid.uuid4().hex}")
    view = upstream.options(timeout=None)
    assert_type(view, Upstream)

    @view.guard
    def items(count: int) -> Iterator[int]:
        yield from range(count)

    @upstream.options().guard
    async def items_async(count: int) -> AsyncIterator[int]:
        yield count

    assert_type(items(2), Iterator[int])
    assert list(items(2)) == [0, 1]
    assert_type(items_async(1), AsyncIterator[int])
    assert view.sync.call(lambda: 1) == 1
    assert (view.name, view.limiter) == (upstream.name, upstream.limiter)
