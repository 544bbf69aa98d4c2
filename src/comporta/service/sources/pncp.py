"""The format of PNCP, the national portal: its public consultation API, which lists one modality of one UF.

The portal answers a page past the last one with a 400: the number of pages may shrink while they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Final

import msgspec

from comporta.service.sources.base import (
    Code,
    Listing,
    Notice,
    NoticePage,
    PortalStatusError,
    truncated_text,
    web_link,
)
from comporta.service.sources.portal import PortalSource

NAME: Final = "pncp"
PATH: Final = "/api/consulta/v1/contratacoes/publicacao"
PAGE_SIZE: Final = 50
"""The largest page size that the portal accepts."""

_BAD_REQUEST = 400


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

    def listings(self, first_day: date, last_day: date, modality: int, ufs: Sequence[str]) -> list[Listing]:
        """Return one listing for each UF."""
        return [Listing(first_day, last_day, modality, uf) for uf in ufs]

    def has_modality(self, notice: Notice, modality: int) -> bool:
        """Return true: a listing has one modality."""
        return True

    def request_params(self, listing: Listing, number: int) -> dict[str, str | int]:
        """Return the query parameters for a page."""
        return {
            "dataInicial": _compact_date(listing.first_day),
            "dataFinal": _compact_date(listing.last_day),
            "codigoModalidadeContratacao": listing.modality or 0,
            "uf": listing.uf or "",
            "pagina": number,
            "tamanhoPagina": PAGE_SIZE,
        }

    async def request_page(
        self, listing: Listing, number: int, on_sent: Callable[[], None] | None = None
    ) -> NoticePage:
        """Return a page; one past the last is empty."""
        try:
            return await super().request_page(listing, number, on_sent)
        except PortalStatusError as error:
            if error.status == _BAD_REQUEST and number > 1:
                return NoticePage([], number - 1)
            raise

    def parse_page(self, body: bytes, listing: Listing) -> NoticePage:
        """Parse a response body."""
        page = _DECODER.decode(body)
        return NoticePage([_to_notice(item, listing.uf or "") for item in page.data], page.pages)


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
