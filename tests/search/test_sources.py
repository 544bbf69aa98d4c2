"""Requests to portals, and malformed responses."""

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
from comporta.service.sources.base import (
    Listing,
    MalformedPageError,
    Notice,
    NoticePage,
    NoticeSource,
    PortalError,
)
from comporta.service.sources.pcp import PcpSource
from comporta.service.sources.pncp import PncpSource
from comporta.service.sources.portal import Portal, http_client
from comporta.testing import ProcurementServer
from comporta.testing.http_server import HttpRequest, HttpServer

WANTED = Listing(date(2026, 1, 1), date(2026, 1, 31), 6, "SP")
DAY = Listing(date(2026, 1, 5), date(2026, 1, 5))
SourceType = Callable[[Portal, int], NoticeSource]


class CannedServer(HttpServer):
    """A portal that answers every request with the same bytes and records the requests."""

    def __init__(self, status: int, content: bytes = b"", **headers: str) -> None:
        super().__init__()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        length = "" if status == 204 else f"content-length: {len(content)}\r\n"
        self._answer = f"HTTP/1.1 {status} -\r\n{length}{lines}\r\n".encode() + content
        self.requests: list[HttpRequest] = []

    async def _respond(self, request: HttpRequest) -> bytes:
        self.requests.append(request)
        return self._answer


@contextmanager
def open_source(kind: SourceType, canned: CannedServer, threshold: int = 1000) -> Iterator[NoticeSource]:
    with canned:
        breaker = BreakerConfig(threshold=threshold)
        upstream = Upstream("portal", "1000/s", retry=False, breaker=breaker, state="memory://")
        client = http_client(httpx2.AsyncHTTPTransport(), 5)
        yield kind(Portal(upstream, f"{canned.url}/", client, bytes_max=10_000), 20)


def fetch(kind: SourceType, canned: CannedServer, number: int = 1, wanted: Listing = WANTED) -> NoticePage:
    async def asking() -> NoticePage:
        with open_source(kind, canned) as source:
            try:
                return await source.fetch_page(wanted, number)
            finally:
                await source.aclose()

    return asyncio.run(asking())


@pytest.mark.parametrize("kind", [PncpSource, PcpSource])
def test_source__simulated_portal__returns_all_pages_in_one_form(
    kind: SourceType,
) -> None:
    with ProcurementServer(seed=9) as server:
        base = server.pncp.url if kind is PncpSource else server.pcp.url

        async def scenario() -> None:
            upstream = Upstream("portal", "1000/s", retry=False, state="memory://")
            client = http_client(httpx2.AsyncHTTPTransport(), 5)
            source = kind(Portal(upstream, base, client, bytes_max=1_000_000), 20)
            [listing] = source.listings(DAY.first_day, DAY.last_day, 6, ["SP"])
            first = await source.fetch_page(listing, 1)
            assert first.page_count >= 1
            assert {frozenset(notice) for notice in first.notices} == {frozenset(Notice.__annotations__)}
            assert ("SP" in {notice["uf"] for notice in first.notices}) is (kind is PncpSource)
            assert (await source.fetch_page(listing, 99)).notices == []
            await source.aclose()

        asyncio.run(scenario())


def test_pncp__query__uses_the_portals_parameter_names() -> None:
    canned = CannedServer(204)
    assert fetch(PncpSource, canned, 3) == NoticePage([], 0)
    [request] = canned.requests
    assert request.path == "/api/consulta/v1/contratacoes/publicacao"
    assert request.query == {
        "dataInicial": "20260101",
        "dataFinal": "20260131",
        "codigoModalidadeContratacao": "6",
        "uf": "SP",
        "pagina": "3",
        "tamanhoPagina": "50",
    }


def test_pncp__early_year__keeps_leading_zeros() -> None:
    canned = CannedServer(204)
    fetch(PncpSource, canned, 1, Listing(date(1, 1, 1), date(999, 12, 31), 6, "SP"))
    [request] = canned.requests
    assert (request.query["dataInicial"], request.query["dataFinal"]) == ("00010101", "09991231")


@pytest.mark.parametrize("kind", [PncpSource, PcpSource])
def test_source__null_fields__still_make_a_notice(
    kind: SourceType,
) -> None:
    item: dict[str, Any] = {"numeroControlePNCP": "1", "orgaoEntidade": None, "unidadeOrgao": None}
    item |= {"codigoLicitacao": 1, "unidadeCompradora": None, "tipoLicitacao": None, "urlReferencia": None}
    body = json.dumps({"data": [item], "result": [item]}).encode()
    [notice] = fetch(kind, CannedServer(200, body)).notices
    expected = ("1", None, "SP", None) if kind is PncpSource else ("pcp:1", None, "", None)
    assert (notice["id"], notice["agency"], notice["uf"], notice["url"]) == expected


@pytest.mark.parametrize("kind", [PncpSource, PcpSource])
@pytest.mark.parametrize(
    "content",
    [
        b"<html>",
        b"[]",
        b'{"data": [{}], "result": [{}]}',
        b'{"data": [{"numeroControlePNCP": "\xff"}], "result": [{"codigoLicitacao": "\xff"}]}',
        b'{"data": [{"numeroControlePNCP": "1", "modalidadeId": %(huge)d}],'
        b' "result": [{"codigoLicitacao": %(huge)d}]}' % {b"huge": 10**30},
        b'{"x": ' + b"[" * 4_990 + b"]" * 4_990 + b"}",
        b" " * 10_001,
    ],
    ids=lambda it: it[:14],
)
def test_source__malformed_page__counts_as_a_failure_in_the_breaker(kind: SourceType, content: bytes) -> None:
    async def scenario() -> None:
        with open_source(kind, CannedServer(200, content), threshold=1) as source:
            with pytest.raises(MalformedPageError, match="sent"):
                await source.fetch_page(WANTED, 1)
            with pytest.raises(CircuitOpenError):
                await source.fetch_page(WANTED, 1)
            await source.aclose()

    asyncio.run(scenario())


def test_source__compressed_page__is_refused_unread() -> None:
    with pytest.raises(MalformedPageError, match="compressed"):
        fetch(PncpSource, CannedServer(200, b"x", content_encoding="gzip"))


@pytest.mark.parametrize("status", [302, 404, 500])
def test_source__other_status__is_an_error_and_redirects_are_not_followed(status: int) -> None:
    canned = CannedServer(status, location="/elsewhere")
    with pytest.raises(PortalError, match=f"answered with status {status}"):
        fetch(PncpSource, canned)
    assert len(canned.requests) == 1


def test_source__links_and_texts__are_truncated_and_harmless() -> None:
    item = {
        "numeroControlePNCP": "1",
        "objetoCompra": "x" * 9000,
        "linkSistemaOrigem": "javascript:alert(1)",
    }
    [notice] = fetch(PncpSource, CannedServer(200, json.dumps({"data": [item]}).encode())).notices
    assert (notice["url"], len(notice["object"]), notice["uf"]) == (None, 4000, "SP")


@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ("www.portal.example/77", "https://www.portal.example/77"),
        ("portal.example:8080/77", "https://portal.example:8080/77"),
        ("//portal.example/77", "https://portal.example/77"),
        ("http://portal.example", "http://portal.example"),
        ("data:text/html,x", None),
        ("", None),
    ],
)
def test_pncp__link__gets_a_scheme_if_it_lacks_one(link: str, shown: str | None) -> None:
    item = {"numeroControlePNCP": "1", "linkSistemaOrigem": link}
    [notice] = fetch(PncpSource, CannedServer(200, json.dumps({"data": [item]}).encode())).notices
    assert notice["url"] == shown


def test_pncp__page_past_the_last__is_the_end_and_a_first_page_refused_an_error() -> None:
    assert fetch(PncpSource, CannedServer(400), number=3) == NoticePage([], 2)
    with pytest.raises(PortalError, match="answered with status 400"):
        fetch(PncpSource, CannedServer(400))


def test_pcp__query__uses_the_portals_parameter_names() -> None:
    canned = CannedServer(200, b'{"result": []}')
    assert fetch(PcpSource, canned, 3, DAY) == NoticePage([], 1)
    [request] = canned.requests
    assert request.path == "/v2/licitacao/processos"
    assert request.query == {
        "dataInicial": "2026-01-05",
        "dataFinal": "2026-01-05",
        "tipoData": "1",
        "pagina": "3",
    }


@pytest.mark.parametrize("cnpj", ["CNPJ", "cnpj"])
def test_pcp__item__becomes_a_notice(cnpj: str) -> None:
    unit = {"nomeUnidadeCompradora": "Unit", "cidade": "Macapá", "uf": "AP", cnpj: "12345678000195"}
    item = {
        "codigoLicitacao": 77,
        "resumo": "Aquisição de uniformes",
        "razaoSocial": "Prefeitura",
        "unidadeCompradora": unit,
        "tipoLicitacao": {"modalidadeLicitacao": "Pregão Eletrônico"},
        "dataHoraPublicacao": "2026-01-05T11:00:00Z",
        "dataHoraFinalPropostas": None,
        "urlReferencia": "/processos/ap/77",
    }
    [notice] = fetch(PcpSource, CannedServer(200, json.dumps({"result": [item]}).encode())).notices
    assert notice == {
        "id": "pcp:77",
        "sources": ["pcp"],
        "agency": "Prefeitura",
        "cnpj": "12345678000195",
        "uf": "AP",
        "city": "Macapá",
        "object": "Aquisição de uniformes",
        "value": None,
        "modality": None,
        "modality_name": "Pregão Eletrônico",
        "published_at": "2026-01-05T11:00:00Z",
        "closes_at": None,
        "url": "https://www.portaldecompraspublicas.com.br/processos/ap/77",
    }
    with open_source(PcpSource, CannedServer(200)) as source:
        assert [code for code in range(1, 16) if source.has_modality(notice, code)] == [6, 7]
