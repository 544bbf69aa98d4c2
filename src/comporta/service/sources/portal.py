"""Fetches and parses pages of a portal through its upstream, bounded in time and size.

Reading and parsing the body belong to the attempt: a truncated or malformed page counts as a failure in the
portal's breaker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import httpx2
import msgspec

from comporta.service.sources.base import MalformedPageError, NoticePage, PortalError, UfQuery
from comporta.upstream.upstream import Upstream

T = TypeVar("T")

_OK, _NO_CONTENT = 200, 204


class PortalResponse(NamedTuple, Generic[T]):
    """The response of one attempt; the field names are those that the upstream's classifier reads."""

    status_code: int
    headers: Mapping[str, str]
    page: T | None


class Portal:
    """A base URL, and the upstream whose policies apply to it."""

    def __init__(self, upstream: Upstream, base: str, client: httpx2.AsyncClient, *, bytes_max: int) -> None:
        self.upstream = upstream
        self._base = base.rstrip("/")
        self._client = client
        self._bytes_max = bytes_max

    async def get(self, path: str, params: Mapping[str, str | int], parse: Callable[[bytes], T]) -> T | None:
        """Return what ``parse`` makes of the response body; ``None`` for a 204."""
        response: PortalResponse[T] = await self.upstream.call(self._attempt, path, params, parse)
        if response.status_code not in (_OK, _NO_CONTENT):
            raise PortalError(f"{self.upstream.name} answered with status {response.status_code}")
        return response.page

    async def _attempt(
        self, path: str, params: Mapping[str, str | int], parse: Callable[[bytes], T]
    ) -> PortalResponse[T]:
        async with self._client.stream("GET", self._base + path, params=dict(params)) as response:
            page = None
            if response.status_code == _OK:
                page = parse(await self._body(response))
            return PortalResponse(response.status_code, response.headers, page)

    async def _body(self, response: httpx2.Response) -> bytes:
        """Read the body. Compressed bodies are refused, so that the size limit applies to the real size."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise MalformedPageError(f"{self.upstream.name} sent a compressed page, which was not requested")
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self._bytes_max:
                raise MalformedPageError(f"{self.upstream.name} sent more than {self._bytes_max} bytes")
        return bytes(body)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()


class PortalSource(ABC):
    """A source that is a portal; subclasses define its path, parameters and response format."""

    name: ClassVar[str]
    path: ClassVar[str]

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    @property
    def upstream(self) -> Upstream:
        """The upstream whose policies apply to every call."""
        return self._portal.upstream

    @abstractmethod
    def request_params(self, query: UfQuery, number: int) -> dict[str, str | int]:
        """Return the query parameters for a page."""

    @abstractmethod
    def parse_page(self, body: bytes, uf: str) -> NoticePage:
        """Parse a response body; may raise the decoder's errors."""

    async def fetch_page(self, query: UfQuery, number: int) -> NoticePage:
        """Return a page; a 204 is an empty page."""
        params = self.request_params(query, number)
        return await self._portal.get(self.path, params, self._parser(query.uf)) or NoticePage([], 0)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._portal.aclose()

    def _parser(self, uf: str) -> Callable[[bytes], NoticePage]:
        def parse(body: bytes) -> NoticePage:
            try:
                return self.parse_page(body, uf)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise MalformedPageError(f"{self.name} sent a malformed page: {error}") from None

        return parse


def http_client(transport: httpx2.AsyncBaseTransport, timeout: float) -> httpx2.AsyncClient:
    """Return a client that connects only to the given URLs: no proxies, no redirects."""
    headers: dict[str, Any] = {"accept": "application/json", "accept-encoding": "identity"}
    return httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=timeout, trust_env=False, follow_redirects=False
    )
