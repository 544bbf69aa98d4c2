"""The format of PCP, the Portal de Compras Públicas: a listing by date, UF and page.

The format is comporta's own: you run a gateway to the portal that serves it, and configure its address.
"""

from __future__ import annotations

from typing import Final

import msgspec

from comporta.service.sources.base import Code, Notice, NoticePage, UfQuery, truncated_text, web_link
from comporta.service.sources.portal import PortalSource

NAME: Final = "pcp"
PATH: Final = "/v1/processos"
PAGE_SIZE: Final = 50


class _PcpAgency(msgspec.Struct):
    cnpj: str | None = None
    name: str | None = msgspec.field(default=None, name="nome")


class _PcpModality(msgspec.Struct):
    code: Code | None = msgspec.field(default=None, name="codigo")
    name: str | None = msgspec.field(default=None, name="nome")


class _PcpItem(msgspec.Struct):
    number: int | str = msgspec.field(name="id")
    control_number: str | None = msgspec.field(default=None, name="numeroControlePncp")
    agency: _PcpAgency | None = msgspec.field(default=None, name="orgao")
    uf: str | None = None
    city: str | None = msgspec.field(default=None, name="municipio")
    description: str | None = msgspec.field(default=None, name="objeto")
    value: float | None = msgspec.field(default=None, name="valorEstimado")
    modality: _PcpModality | None = msgspec.field(default=None, name="modalidade")
    published: str | None = msgspec.field(default=None, name="publicadoEm")
    closes: str | None = msgspec.field(default=None, name="encerraEm")
    link: str | None = None


class _PcpBody(msgspec.Struct):
    items: list[_PcpItem] = msgspec.field(name="processos")
    pages: int = msgspec.field(default=1, name="paginas")


_DECODER = msgspec.json.Decoder(_PcpBody)


class PcpSource(PortalSource):
    """Fetches notices from PCP."""

    name = NAME
    path = PATH

    def request_params(self, query: UfQuery, number: int) -> dict[str, str | int]:
        """Return the query parameters for a page."""
        return {
            "dataInicial": query.first_day.isoformat(),
            "dataFinal": query.last_day.isoformat(),
            "modalidade": query.modality,
            "uf": query.uf,
            "pagina": number,
            "tamanhoPagina": PAGE_SIZE,
        }

    def parse_page(self, body: bytes, uf: str) -> NoticePage:
        """Parse a response body."""
        page = _DECODER.decode(body)
        return NoticePage([_to_notice(item, uf) for item in page.items], page.pages)


def _to_notice(item: _PcpItem, uf: str) -> Notice:
    agency, modality = item.agency or _PcpAgency(), item.modality or _PcpModality()
    return {
        "id": truncated_text(item.control_number) or f"{NAME}:{item.number}"[:100],
        "sources": [NAME],
        "agency": truncated_text(agency.name),
        "cnpj": truncated_text(agency.cnpj),
        "uf": truncated_text(item.uf) or uf,
        "city": truncated_text(item.city),
        "object": truncated_text(item.description) or "",
        "value": item.value,
        "modality": modality.code,
        "modality_name": truncated_text(modality.name),
        "published_at": truncated_text(item.published),
        "closes_at": truncated_text(item.closes),
        "url": web_link(item.link),
    }
