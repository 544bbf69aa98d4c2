"""HTTP clients of all kinds behind one face: a request, and the report of its call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import requests

from comporta import CallReport, Upstream

KINDS = ("httpx2", "httpx2-awaiting", "httpx", "httpx-awaiting", "requests")


class Answer(NamedTuple):
    status: int
    report: CallReport
    text: str


class Client:
    """Sends requests through an upstream."""

    def __init__(self, kind: str, upstream: Upstream, *, connections: int = 10, timeout: float = 5.0) -> None:
        self.package, _, awaiting = kind.partition("-")
        self._runner = asyncio.Runner() if awaiting else None
        self._timeout = timeout
        self._client: Any
        if self.package == "requests":
            self._client = requests.Session()
            self._client.mount("http://", upstream.sync.adapter())
            return
        package: Any = import_module(self.package)
        limits = package.Limits(max_connections=connections)
        # the environment may name a proxy: what is tried here is the machine's own
        if self._runner is None:
            transport = upstream.sync.transport(package.HTTPTransport(limits=limits), client=self.package)
            self._client = package.Client(transport=transport, timeout=timeout, trust_env=False)
        else:
            transport = upstream.transport(package.AsyncHTTPTransport(limits=limits), client=self.package)
            self._client = package.AsyncClient(transport=transport, timeout=timeout, trust_env=False)

    def __enter__(self) -> Client:
        if self._runner is not None:
            self._runner.run(self._client.__aenter__())
        elif self.package != "requests":
            self._client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self._runner.run(self._client.__aexit__(None, None, None))
            self._runner.close()
        else:
            self._client.__exit__(None, None, None)

    def send(self, url: str, method: str = "GET", *, stream: bool = False, **options: Any) -> Answer:
        if self.package == "requests":
            body: Any = _pieces() if stream else options.pop("content", None)
            response = self._client.request(
                method, url, data=body, timeout=self._timeout, proxies={"http": ""}, **options
            )
            return Answer(response.status_code, response.comporta, response.text)
        if stream:
            options["content"] = _pieces() if self._runner is None else _pieces_async()
        response = self._client.request(method, url, **options)
        if self._runner is not None:
            response = self._runner.run(_awaited(response))
        return Answer(response.status_code, response.extensions["comporta"], response.text)


async def _awaited(response: Any) -> Any:
    return await response


def _pieces() -> Iterator[bytes]:
    yield b"some"
    yield b"body"


async def _pieces_async() -> AsyncIterator[bytes]:
    for piece in _pieces():
        yield piece
