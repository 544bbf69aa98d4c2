"""HTTP clients of all kinds with one interface: a request, and the report of its call."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import aiohttp
import requests

from comporta import CallReport, Upstream

KINDS = ("httpx2", "httpx2-awaiting", "httpx", "httpx-awaiting", "requests", "aiohttp-awaiting")


class Answer(NamedTuple):
    status: int
    report: CallReport
    text: str


class Client:
    """Sends requests through an upstream."""

    def __init__(
        self,
        kind: str,
        upstream: Upstream,
        *,
        connections: int = 10,
        timeout: float | None = 5.0,
        buffer_body: int | None = None,
    ) -> None:
        self.package, _, awaiting = kind.partition("-")
        self._runner = asyncio.Runner() if awaiting else None
        self._timeout = timeout
        self._client: Any
        if self.package == "requests":
            self._client = requests.Session()
            self._client.mount("http://", upstream.sync.adapter(pool_maxsize=connections))
            return
        if self.package == "aiohttp":
            self._client = self.run(self._open_session(upstream, connections, buffer_body))
            return
        package: Any = import_module(self.package)
        limits = package.Limits(max_connections=connections)
        options: Any = {"client": self.package, "buffer_body": buffer_body}
        # the environment may name a proxy, which must not see requests to this machine
        if self._runner is None:
            transport = upstream.sync.transport(package.HTTPTransport(limits=limits), **options)
            self._client = package.Client(transport=transport, timeout=timeout, trust_env=False)
        else:
            transport = upstream.transport(package.AsyncHTTPTransport(limits=limits), **options)
            self._client = package.AsyncClient(transport=transport, timeout=timeout, trust_env=False)

    async def _open_session(
        self, upstream: Upstream, connections: int, buffer_body: int | None
    ) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections),
            middlewares=[upstream.middleware(buffer_body=buffer_body)],
            timeout=aiohttp.ClientTimeout(total=self._timeout),
        )

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

    @property
    def is_blocking(self) -> bool:
        return self._runner is None

    @property
    def error(self) -> type[Exception]:
        """The class of the client's errors that a caller catches."""
        module: Any = import_module(self.package)
        names = {"requests": "RequestException", "aiohttp": "ClientError"}
        error: type[Exception] = getattr(module, names.get(self.package, "TransportError"))
        return error

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        assert self._runner is not None
        return self._runner.run(coroutine)

    def send(self, url: str, method: str = "GET", *, stream: bool = False, **options: Any) -> Answer:
        if self.package == "requests":
            body: Any = _pieces() if stream else options.pop("content", None)
            response = self._client.request(
                method, url, data=body, timeout=self._timeout, proxies={"http": ""}, **options
            )
            return Answer(response.status_code, response.comporta, response.text)
        if self.package == "aiohttp":
            body = _pieces_async() if stream else options.pop("content", None)
            answer: Answer = self.run(self._send_aiohttp(url, method, data=body, **options))
            return answer
        if stream:
            options["content"] = _pieces() if self._runner is None else _pieces_async()
        response = self._client.request(method, url, **options)
        if self._runner is not None:
            response = self._runner.run(_await_response(response))
        return Answer(response.status_code, response.extensions["comporta"], response.text)

    async def _send_aiohttp(self, url: str, method: str, **options: Any) -> Answer:
        async with self._client.request(method, url, **options) as response:
            return Answer(response.status, response.comporta, await response.text())

    def open(self, url: str) -> Stream:
        """Send a request and return its response with an unread body."""
        if self.package == "requests":
            response = self._client.get(url, stream=True, timeout=self._timeout, proxies={"http": ""})
        elif self.package == "aiohttp":
            response = self.run(_await_response(self._client.get(url)))
        else:
            response = self._client.send(self._client.build_request("GET", url), stream=True)
            if self._runner is not None:
                response = self.run(_await_response(response))
        return Stream(self, response)


class Stream:
    """A response with an unread body, of a client of any kind."""

    def __init__(self, client: Client, response: Any) -> None:
        self._client = client
        self.response = response
        parts: Any
        if client.package == "requests":
            parts = response.iter_content(None)
        elif client.package == "aiohttp":
            parts = response.content.iter_any()
        else:
            parts = response.iter_raw() if client.is_blocking else response.aiter_raw()
        self._parts = parts

    @property
    def report(self) -> CallReport:
        if self._client.package in ("requests", "aiohttp"):
            report: CallReport = self.response.comporta
        else:
            report = self.response.extensions["comporta"]
        return report

    def read(self) -> bytes:
        """Read some bytes; none at the end."""
        if self._client.is_blocking:
            return next(self._parts, b"")
        part: bytes = self._client.run(self.read_async())
        return part

    def read_all(self) -> bytes:
        return b"".join(iter(self.read, b""))

    async def read_async(self) -> bytes:
        return await anext(self._parts, b"")

    def close(self) -> None:
        if self._client.package == "aiohttp":
            self._client.run(self._close_aiohttp())
        elif self._client.is_blocking:
            self.response.close()
        else:
            self._client.run(self.response.aclose())

    async def _close_aiohttp(self) -> None:
        self.response.close()

    def drop(self) -> None:
        """Forget the response without closing it, and collect it."""
        if self._client.is_blocking:
            del self.response, self._parts
            gc.collect()
        else:
            self._client.run(self._drop_async())

    async def _drop_async(self) -> None:
        del self.response, self._parts
        for _ in range(5):  # generators close in tasks of the loop, one after the other
            gc.collect()
            for _ in range(5):
                await asyncio.sleep(0)


async def _await_response(response: Any) -> Any:
    return await response


def _pieces() -> Iterator[bytes]:
    yield b"some"
    yield b"body"


async def _pieces_async() -> AsyncIterator[bytes]:
    for piece in _pieces():
        yield piece
