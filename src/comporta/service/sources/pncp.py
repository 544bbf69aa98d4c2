"""PNCP, the national portal: the shape of its public consultation interface."""

from __future__ import annotations

from datetime import date
from typing import Final

import msgspec

from comporta.service.sources.base import Code, MalformedPageError, Notice, Page, Wanted, bounded, web_link
from comporta.service.sources.fetching import Portal
from comporta.upstream.upstream import Upstream

NAME: Final = "pncp"
PATH: Final = "/api/consulta/v1/contratacoes/publicacao"
PAGE_SIZE: Final = 50
"""The largest page that the portal gives."""


class _Agency(msgspec.Struct):
    cnpj: str | None = None
    name: str | None = msgspec.field(default=None, name="razaoSocial")


class _Unit(msgspec.Struct):
    uf: str | None = msgspec.field(default=None, name="ufSigla")
    city: str | None = msgspec.field(default=None, name="municipioNome")


class _Item(msgspec.Struct):
    number: str = msgspec.field(name="numeroControlePNCP")
    agency: _Agency | None = msgspec.field(default=None, name="orgaoEntidade")
    unit: _Unit | None = msgspec.field(default=None, name="unidadeOrgao")
    what: str | None = msgspec.field(default=None, name="objetoCompra")
    value: float | None = msgspec.field(default=None, name="valorTotalEstimado")
    modality: Code | None = msgspec.field(default=None, name="modalidadeId")
    modality_name: str | None = msgspec.field(default=None, name="modalidadeNome")
    published: str | None = msgspec.field(default=None, name="dataPublicacaoPncp")
    closes: str | None = msgspec.field(default=None, name="dataEncerramentoProposta")
    link: str | None = msgspec.field(default=None, name="linkSistemaOrigem")


class _Body(msgspec.Struct):
    data: list[_Item]
    pages: int = msgspec.field(default=1, name="totalPaginas")


_DECODER = msgspec.json.Decoder(_Body)


class Pncp:
    """Asks PNCP for what was published."""

    name = NAME

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    @property
    def upstream(self) -> Upstream:
        """How it may be used."""
        return self._portal.upstream

    async def page(self, wanted: Wanted, number: int) -> Page:
        """Return a page; a 204 is an empty one."""
        told: dict[str, str | int] = {
            "dataInicial": _day(wanted.first),
            "dataFinal": _day(wanted.last),
            "codigoModalidadeContratacao": wanted.modality,
            "uf": wanted.uf,
            "pagina": number,
            "tamanhoPagina": PAGE_SIZE,
        }
        return await self._portal.get(PATH, told, lambda body: _page(body, wanted.uf)) or Page([], 0)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._portal.aclose()


def _day(day: date) -> str:
    """Return a day as the portal wants it; ``%Y`` would leave out the zeros of early years."""
    return day.isoformat().replace("-", "")


def _page(body: bytes, uf: str) -> Page:
    try:
        read = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedPageError(f"{NAME} sent what is no page: {error}") from None
    return Page([_notice(item, uf) for item in read.data], read.pages)


def _notice(item: _Item, uf: str) -> Notice:
    agency, unit = item.agency or _Agency(), item.unit or _Unit()
    return {
        "id": bounded(item.number) or "",
        "sources": [NAME],
        "agency": bounded(agency.name),
        "cnpj": bounded(agency.cnpj),
        "uf": bounded(unit.uf) or uf,
        "city": bounded(unit.city),
        "object": bounded(item.what) or "",
        "value": item.value,
        "modality": item.modality,
        "modality_name": bounded(item.modality_name),
        "published_at": bounded(item.published),
        "closes_at": bounded(item.closes),
        "url": web_link(item.link),
    }
