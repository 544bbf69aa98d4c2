"""Fetches and parses pages of a portal through its upstream, bounded in time and size.

Reading and parsing the body belong to the attempt: a truncated or malformed page counts as a failure in the
portal's breaker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cache
from ssl import SSLContext
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import httpx2
import msgspec

from comporta.errors import RefusedError
from comporta.service.sources.base import (
    Listing,
    MalformedPageError,
    Notice,
    NoticePage,
    PortalStatusError,
)
from comporta.service.sources.last_answers import record_failure, record_page
from comporta.upstream.upstream import Upstream

T = TypeVar("T")

WAIT_SECONDS_MAX: Final = 600.0
"""How long a page waits for capacity: the search that needs it waits for less, and gets it later."""

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

    async def get(
        self,
        path: str,
        params: Mapping[str, str | int],
        parse: Callable[[bytes], T],
        on_sent: Callable[[], None] | None = None,
    ) -> T | None:
        """Return what ``parse`` makes of the response body; ``None`` for a 204.

        Each attempt calls ``on_sent`` when it no longer waits for capacity.
        """
        upstream = self.upstream.options(max_wait=WAIT_SECONDS_MAX)
        response: PortalResponse[T] = await upstream.call(self._attempt, path, params, parse, on_sent)
        if response.status_code not in (_OK, _NO_CONTENT):
            raise PortalStatusError(self.upstream.name, response.status_code)
        return response.page

    async def _attempt(
        self,
        path: str,
        params: Mapping[str, str | int],
        parse: Callable[[bytes], T],
        on_sent: Callable[[], None] | None,
    ) -> PortalResponse[T]:
        if on_sent is not None:
            on_sent()
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

    def __init__(self, portal: Portal, pages_max: int) -> None:
        self._portal = portal
        self.pages_max = pages_max

    @property
    def upstream(self) -> Upstream:
        """The upstream whose policies apply to every call."""
        return self._portal.upstream

    @abstractmethod
    def listings(self, first_day: date, last_day: date, modality: int, ufs: Sequence[str]) -> list[Listing]:
        """Return the listings that together have all notices of these days, this modality and these UFs."""

    @abstractmethod
    def has_modality(self, notice: Notice, modality: int) -> bool:
        """Return whether a listed notice has a modality."""

    @abstractmethod
    def request_params(self, listing: Listing, number: int) -> dict[str, str | int]:
        """Return the query parameters for a page."""

    @abstractmethod
    def parse_page(self, body: bytes, listing: Listing) -> NoticePage:
        """Parse a response body; may raise the decoder's errors."""

    async def fetch_page(
        self, listing: Listing, number: int, on_sent: Callable[[], None] | None = None
    ) -> NoticePage:
        """Return a page, and record for all workers whether the portal sent one."""
        store = self.upstream.store
        try:
            page = await self.request_page(listing, number, on_sent)
        except RefusedError:
            raise  # the portal was not asked
        except Exception as error:
            await record_failure(store, self.name, error)
            raise
        await record_page(store, self.name)
        return page

    async def request_page(
        self, listing: Listing, number: int, on_sent: Callable[[], None] | None = None
    ) -> NoticePage:
        """Return a page; a 204 is an empty page."""
        params = self.request_params(listing, number)
        page = await self._portal.get(self.path, params, self._parser(listing), on_sent)
        return page or NoticePage([], 0)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._portal.aclose()

    def _parser(self, listing: Listing) -> Callable[[bytes], NoticePage]:
        def parse(body: bytes) -> NoticePage:
            try:
                return self.parse_page(body, listing)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise MalformedPageError(f"{self.name} sent a malformed page: {error}") from None

        return parse


@cache
def tls_context() -> SSLContext:
    """Return the TLS context of all clients of the service: reading the list of authorities takes 20 ms.

    As usual for OpenSSL, ``SSL_CERT_FILE`` and ``SSL_CERT_DIR`` name other authorities to trust.
    """
    return httpx2.create_ssl_context()


def http_client(transport: httpx2.AsyncBaseTransport, timeout: float) -> httpx2.AsyncClient:
    """Return a client that connects only to the given URLs: no proxies, no redirects."""
    headers: dict[str, Any] = {"accept": "application/json", "accept-encoding": "identity"}
    return httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=timeout, trust_env=False, follow_redirects=False
    )
