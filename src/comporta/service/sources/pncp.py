"""PNCP, the national portal: the shape of its public consultation interface."""

from __future__ import annotations

from datetime import date
from typing import Final

import msgspec

from comporta.service.sources.base import Code, Notice, Page, Wanted, bounded, web_link
from comporta.service.sources.fetching import PortalSource

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


class Pncp(PortalSource):
    """Asks PNCP for what was published."""

    name = NAME
    path = PATH

    def question(self, wanted: Wanted, number: int) -> dict[str, str | int]:
        """Return what to ask for a page."""
        return {
            "dataInicial": _day(wanted.first),
            "dataFinal": _day(wanted.last),
            "codigoModalidadeContratacao": wanted.modality,
            "uf": wanted.uf,
            "pagina": number,
            "tamanhoPagina": PAGE_SIZE,
        }

    def read(self, body: bytes, uf: str) -> Page:
        """Return the page in an answer."""
        read = _DECODER.decode(body)
        return Page([_notice(item, uf) for item in read.data], read.pages)


def _day(day: date) -> str:
    """Return a day as the portal wants it; ``%Y`` would leave out the zeros of early years."""
    return day.isoformat().replace("-", "")


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
