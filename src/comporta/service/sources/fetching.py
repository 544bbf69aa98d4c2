"""How every portal is asked: by the rules of its upstream, within bounds of time and size.

Body and shape belong to the attempt: a portal that sends half a page, or something that is no page, has
failed, and its breaker is told.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import httpx2
import msgspec

from comporta.service.sources.base import MalformedPageError, Page, SourceError, Wanted
from comporta.upstream.upstream import Upstream

T = TypeVar("T")

_WELL, _EMPTY = 200, 204


class Answer(NamedTuple, Generic[T]):
    """What one attempt brought, by the names that verdicts go by."""

    status_code: int
    headers: Mapping[str, str]
    page: T | None


class Portal:
    """A base address, and the upstream that says how it may be used."""

    def __init__(self, upstream: Upstream, base: str, client: httpx2.AsyncClient, *, bytes_max: int) -> None:
        self.upstream = upstream
        self._base = base.rstrip("/")
        self._client = client
        self._bytes_max = bytes_max

    async def get(self, path: str, told: Mapping[str, str | int], read: Callable[[bytes], T]) -> T | None:
        """Return what ``read`` makes of the answer; nothing if the portal has none."""
        answer: Answer[T] = await self.upstream.call(self._attempt, path, told, read)
        if answer.status_code not in (_WELL, _EMPTY):
            raise SourceError(f"{self.upstream.name} answered {answer.status_code}")
        return answer.page

    async def _attempt(
        self, path: str, told: Mapping[str, str | int], read: Callable[[bytes], T]
    ) -> Answer[T]:
        async with self._client.stream("GET", self._base + path, params=dict(told)) as response:
            page = None
            if response.status_code == _WELL:
                page = read(await self._body(response))
            return Answer(response.status_code, response.headers, page)

    async def _body(self, response: httpx2.Response) -> bytes:
        """Read a body; nothing is unpacked, so that what was counted is what there is."""
        if response.headers.get("content-encoding", "identity") != "identity":
            raise MalformedPageError(f"{self.upstream.name} sent a packed page, which was not asked for")
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
    """A source that is a portal: its path, what is asked there and how an answer reads is its own."""

    name: ClassVar[str]
    path: ClassVar[str]

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    @property
    def upstream(self) -> Upstream:
        """How it may be used."""
        return self._portal.upstream

    @abstractmethod
    def question(self, wanted: Wanted, number: int) -> dict[str, str | int]:
        """Return what to ask for a page, in the portal's words."""

    @abstractmethod
    def read(self, body: bytes, uf: str) -> Page:
        """Return the page in an answer; raises what the decoder does."""

    async def page(self, wanted: Wanted, number: int) -> Page:
        """Return a page; a 204 is an empty one."""
        question = self.question(wanted, number)
        return await self._portal.get(self.path, question, self._read(wanted.uf)) or Page([], 0)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._portal.aclose()

    def _read(self, uf: str) -> Callable[[bytes], Page]:
        def page(body: bytes) -> Page:
            try:
                return self.read(body, uf)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise MalformedPageError(f"{self.name} sent what is no page: {error}") from None

        return page


def client_for(transport: httpx2.AsyncBaseTransport, seconds: float) -> httpx2.AsyncClient:
    """Return a client that goes where it was told, and nowhere else: no proxies, no redirects."""
    headers: dict[str, Any] = {"accept": "application/json", "accept-encoding": "identity"}
    return httpx2.AsyncClient(
        transport=transport, headers=headers, timeout=seconds, trust_env=False, follow_redirects=False
    )
