"""The format of PNCP, the national portal: its public consultation API."""

from __future__ import annotations

from datetime import date
from typing import Final

import msgspec

from comporta.service.sources.base import Code, Notice, NoticePage, UfQuery, truncated_text, web_link
from comporta.service.sources.portal import PortalSource

NAME: Final = "pncp"
PATH: Final = "/api/consulta/v1/contratacoes/publicacao"
PAGE_SIZE: Final = 50
"""The largest page size that the portal accepts."""


class _PncpAgency(msgspec.Struct):
    cnpj: str | None = None
    name: str | None = msgspec.field(default=None, name="razaoSocial")


class _PncpUnit(msgspec.Struct):
    uf: str | None = msgspec.field(default=None, name="ufSigla")
    city: str | None = msgspec.field(default=None, name="municipioNome")


class _PncpItem(msgspec.Struct):
    number: str = msgspec.field(name="numeroControlePNCP")
    agency: _PncpAgency | None = msgspec.field(default=None, name="orgaoEntidade")
    unit: _PncpUnit | None = msgspec.field(default=None, name="unidadeOrgao")
    description: str | None = msgspec.field(default=None, name="objetoCompra")
    value: float | None = msgspec.field(default=None, name="valorTotalEstimado")
    modality: Code | None = msgspec.field(default=None, name="modalidadeId")
    modality_name: str | None = msgspec.field(default=None, name="modalidadeNome")
    published: str | None = msgspec.field(default=None, name="dataPublicacaoPncp")
    closes: str | None = msgspec.field(default=None, name="dataEncerramentoProposta")
    link: str | None = msgspec.field(default=None, name="linkSistemaOrigem")


class _PncpBody(msgspec.Struct):
    data: list[_PncpItem]
    pages: int = msgspec.field(default=1, name="totalPaginas")


_DECODER = msgspec.json.Decoder(_PncpBody)


class PncpSource(PortalSource):
    """Fetches notices from PNCP."""

    name = NAME
    path = PATH

    def request_params(self, query: UfQuery, number: int) -> dict[str, str | int]:
        """Return the query parameters for a page."""
        return {
            "dataInicial": _compact_date(query.first_day),
            "dataFinal": _compact_date(query.last_day),
            "codigoModalidadeContratacao": query.modality,
            "uf": query.uf,
            "pagina": number,
            "tamanhoPagina": PAGE_SIZE,
        }

    def parse_page(self, body: bytes, uf: str) -> NoticePage:
        """Parse a response body."""
        page = _DECODER.decode(body)
        return NoticePage([_to_notice(item, uf) for item in page.data], page.pages)


def _compact_date(day: date) -> str:
    """Return a date as YYYYMMDD; ``strftime("%Y")`` would drop leading zeros of early years."""
    return day.isoformat().replace("-", "")


def _to_notice(item: _PncpItem, uf: str) -> Notice:
    agency, unit = item.agency or _PncpAgency(), item.unit or _PncpUnit()
    return {
        "id": truncated_text(item.number) or "",
        "sources": [NAME],
        "agency": truncated_text(agency.name),
        "cnpj": truncated_text(agency.cnpj),
        "uf": truncated_text(unit.uf) or uf,
        "city": truncated_text(unit.city),
        "object": truncated_text(item.description) or "",
        "value": item.value,
        "modality": item.modality,
        "modality_name": truncated_text(item.modality_name),
        "published_at": truncated_text(item.published),
        "closes_at": truncated_text(item.closes),
        "url": web_link(item.link),
    }
