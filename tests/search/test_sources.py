"""How portals are asked, and what becomes of answers that are no pages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import httpx2
import pytest

from comporta import BreakerConfig, CircuitOpenError, Upstream
from comporta.service.sources.base import MalformedPageError, Page, Source, SourceError, Wanted
from comporta.service.sources.fetching import Portal, client_for
from comporta.service.sources.pcp import Pcp
from comporta.service.sources.pncp import Pncp
from comporta.testing import ProcurementServer
from comporta.testing.loopback import Loopback, Request

WANTED = Wanted(date(2026, 1, 1), date(2026, 1, 31), 6, "SP")


class Canned(Loopback):
    """A portal that answers everything with the same bytes, and remembers what it was asked."""

    def __init__(self, status: int, content: bytes = b"", **headers: str) -> None:
        super().__init__()
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        length = "" if status == 204 else f"content-length: {len(content)}\r\n"
        self._answer = f"HTTP/1.1 {status} -\r\n{length}{lines}\r\n".encode() + content
        self.asked: list[Request] = []

    async def answered(self, request: Request) -> bytes:
        self.asked.append(request)
        return self._answer


@contextmanager
def made(kind: Callable[[Portal], Source], canned: Canned, threshold: int = 1000) -> Iterator[Source]:
    with canned:
        breaker = BreakerConfig(threshold=threshold)
        upstream = Upstream("portal", "1000/s", retry=False, breaker=breaker, state="memory://")
        client = client_for(httpx2.AsyncHTTPTransport(), 5)
        yield kind(Portal(upstream, f"{canned.url}/", client, bytes_max=10_000))


def asked(kind: Callable[[Portal], Source], canned: Canned, number: int = 1, wanted: Wanted = WANTED) -> Page:
    async def asking() -> Page:
        with made(kind, canned) as source:
            try:
                return await source.page(wanted, number)
            finally:
                await source.aclose()

    return asyncio.run(asking())


@pytest.mark.parametrize("kind", [Pncp, Pcp])
def test_source__simulated_portal__gives_all_pages_in_one_form(kind: Callable[[Portal], Source]) -> None:
    with ProcurementServer(seed=9) as server:
        base = server.pncp.url if kind is Pncp else server.pcp.url

        async def story() -> None:
            upstream = Upstream("portal", "1000/s", retry=False, state="memory://")
            client = client_for(httpx2.AsyncHTTPTransport(), 5)
            source = kind(Portal(upstream, base, client, bytes_max=1_000_000))
            first = await source.page(WANTED, 1)
            assert first.pages >= 1
            fields = {frozenset(notice) for notice in first.notices}
            assert len(fields) == 1
            assert {notice["uf"] for notice in first.notices} == {"SP"}
            assert (await source.page(WANTED, 99)).notices == []
            await source.aclose()

        asyncio.run(story())


def test_pncp__question__is_asked_in_its_words() -> None:
    canned = Canned(204)
    assert asked(Pncp, canned, 3) == Page([], 0)
    [request] = canned.asked
    assert request.path == "/api/consulta/v1/contratacoes/publicacao"
    assert request.query == {
        "dataInicial": "20260101",
        "dataFinal": "20260131",
        "codigoModalidadeContratacao": "6",
        "uf": "SP",
        "pagina": "3",
        "tamanhoPagina": "50",
    }


def test_pncp__day_long_ago__has_all_its_digits() -> None:
    canned = Canned(204)
    asked(Pncp, canned, 1, Wanted(date(1, 1, 1), date(999, 12, 31), 6, "SP"))
    [request] = canned.asked
    assert (request.query["dataInicial"], request.query["dataFinal"]) == ("00010101", "09991231")


@pytest.mark.parametrize("kind", [Pncp, Pcp])
def test_source__parts_of_a_notice_are_null__is_a_notice_all_the_same(
    kind: Callable[[Portal], Source],
) -> None:
    item: dict[str, Any] = {"numeroControlePNCP": "1", "orgaoEntidade": None, "unidadeOrgao": None}
    item |= {"id": 1, "numeroControlePncp": "1", "orgao": None, "modalidade": None}
    [notice] = asked(kind, Canned(200, json.dumps({"data": [item], "processos": [item]}).encode())).notices
    assert (notice["id"], notice["agency"], notice["uf"]) == ("1", None, "SP")


@pytest.mark.parametrize("kind", [Pncp, Pcp])
@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"[]",
        b'{"data": [{}], "processos": [{}]}',
        b'{"data": [{"numeroControlePNCP": "\xff"}], "processos": [{"id": "\xff"}]}',
        b'{"data": [{"numeroControlePNCP": "1", "modalidadeId": %(huge)d}],'
        b' "processos": [{"id": 1, "modalidade": {"codigo": %(huge)d}}]}' % {b"huge": 10**30},
        b'{"x": ' + b"[" * 4_990 + b"]" * 4_990 + b"}",
        b" " * 10_001,
    ],
    ids=lambda it: it[:14],
)
def test_source__what_is_no_page__is_a_failure_that_the_breaker_hears_of(
    kind: Callable[[Portal], Source], content: bytes
) -> None:
    async def story() -> None:
        with made(kind, Canned(200, content), threshold=1) as source:
            with pytest.raises(MalformedPageError, match="sent"):
                await source.page(WANTED, 1)
            with pytest.raises(CircuitOpenError):
                await source.page(WANTED, 1)
            await source.aclose()

    asyncio.run(story())


def test_source__packed_page__is_refused_unread() -> None:
    with pytest.raises(MalformedPageError, match="packed"):
        asked(Pncp, Canned(200, b"x", content_encoding="gzip"))


@pytest.mark.parametrize("status", [302, 404, 500])
def test_source__another_status__is_an_error_and_redirects_are_not_followed(status: int) -> None:
    canned = Canned(status, location="/elsewhere")
    with pytest.raises(SourceError, match=f"answered {status}"):
        asked(Pncp, canned)
    assert len(canned.asked) == 1


def test_source__links_and_texts__are_bounded_and_harmless() -> None:
    item = {
        "numeroControlePNCP": "1",
        "objetoCompra": "x" * 9000,
        "linkSistemaOrigem": "javascript:alert(1)",
    }
    [notice] = asked(Pncp, Canned(200, json.dumps({"data": [item]}).encode())).notices
    assert (notice["url"], len(notice["object"]), notice["uf"]) == (None, 4000, "SP")
