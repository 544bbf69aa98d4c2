"""PCP, the Portal de Compras Públicas: a plain listing by days, UF and page.

The shape is ours: whoever runs a gateway to the portal gives it this form, and its address is configured.
"""

from __future__ import annotations

from typing import Final

import msgspec

from comporta.service.sources.base import Code, Notice, Page, Wanted, bounded, web_link
from comporta.service.sources.fetching import PortalSource

NAME: Final = "pcp"
PATH: Final = "/v1/processos"
PAGE_SIZE: Final = 50


class _Agency(msgspec.Struct):
    cnpj: str | None = None
    name: str | None = msgspec.field(default=None, name="nome")


class _Modality(msgspec.Struct):
    code: Code | None = msgspec.field(default=None, name="codigo")
    name: str | None = msgspec.field(default=None, name="nome")


class _Item(msgspec.Struct):
    number: int | str = msgspec.field(name="id")
    control_number: str | None = msgspec.field(default=None, name="numeroControlePncp")
    agency: _Agency | None = msgspec.field(default=None, name="orgao")
    uf: str | None = None
    city: str | None = msgspec.field(default=None, name="municipio")
    what: str | None = msgspec.field(default=None, name="objeto")
    value: float | None = msgspec.field(default=None, name="valorEstimado")
    modality: _Modality | None = msgspec.field(default=None, name="modalidade")
    published: str | None = msgspec.field(default=None, name="publicadoEm")
    closes: str | None = msgspec.field(default=None, name="encerraEm")
    link: str | None = None


class _Body(msgspec.Struct):
    items: list[_Item] = msgspec.field(name="processos")
    pages: int = msgspec.field(default=1, name="paginas")


_DECODER = msgspec.json.Decoder(_Body)


class Pcp(PortalSource):
    """Asks PCP for what was published."""

    name = NAME
    path = PATH

    def question(self, wanted: Wanted, number: int) -> dict[str, str | int]:
        """Return what to ask for a page."""
        return {
            "dataInicial": wanted.first.isoformat(),
            "dataFinal": wanted.last.isoformat(),
            "modalidade": wanted.modality,
            "uf": wanted.uf,
            "pagina": number,
            "tamanhoPagina": PAGE_SIZE,
        }

    def read(self, body: bytes, uf: str) -> Page:
        """Return the page in an answer."""
        read = _DECODER.decode(body)
        return Page([_notice(item, uf) for item in read.items], read.pages)


def _notice(item: _Item, uf: str) -> Notice:
    agency, modality = item.agency or _Agency(), item.modality or _Modality()
    return {
        "id": bounded(item.control_number) or f"{NAME}:{item.number}"[:100],
        "sources": [NAME],
        "agency": bounded(agency.name),
        "cnpj": bounded(agency.cnpj),
        "uf": bounded(item.uf) or uf,
        "city": bounded(item.city),
        "object": bounded(item.what) or "",
        "value": item.value,
        "modality": modality.code,
        "modality_name": bounded(modality.name),
        "published_at": bounded(item.published),
        "closes_at": bounded(item.closes),
        "url": web_link(item.link),
    }
