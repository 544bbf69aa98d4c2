"""The format of PCP, the Portal de Compras Públicas: its public API v2, which lists all notices of a day.

The API filters neither by UF nor by modality and returns ten notices a page, so one listing of a publication
day serves every search: it is fetched once, and filtered here. Its notices have no value, and neither PNCP's
control number nor its codes of modalities.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Annotated, Any, Final

import msgspec

from comporta.service.sources.base import Listing, Notice, NoticePage, fold_text, truncated_text, web_link
from comporta.service.sources.portal import PortalSource

NAME: Final = "pcp"
PATH: Final = "/v2/licitacao/processos"
WEB_ADDRESS: Final = "https://www.portaldecompraspublicas.com.br/"
"""The links of notices are paths below this address."""

MODALITY_WORDS: Final = {
    1: "leilao",
    2: "dialogo competitivo",
    3: "concurso",
    4: "concorrencia",
    5: "concorrencia",
    6: "pregao",
    7: "pregao",
    8: "dispensa",
    9: "inexigibilidade",
    10: "manifestacao de interesse",
    11: "pre-qualificacao",
    12: "credenciamento",
    13: "leilao",
}
"""What the name of a modality contains, by PNCP's codes; no notice of PCP has one of the other codes."""

_BY_PUBLICATION = 1


class _PcpUnit(msgspec.Struct):
    name: str | None = msgspec.field(default=None, name="nomeUnidadeCompradora")
    city: str | None = msgspec.field(default=None, name="cidade")
    uf: str | None = None
    cnpj: str | None = None
    cnpj_upper: str | None = msgspec.field(default=None, name="CNPJ")


class _PcpModality(msgspec.Struct):
    name: str | None = msgspec.field(default=None, name="modalidadeLicitacao")


class _PcpItem(msgspec.Struct):
    number: Annotated[int, msgspec.Meta(ge=0, lt=2**53)] = msgspec.field(name="codigoLicitacao")
    description: str | None = msgspec.field(default=None, name="resumo")
    agency: str | None = msgspec.field(default=None, name="razaoSocial")
    unit_name: str | None = msgspec.field(default=None, name="nomeUnidade")
    unit: _PcpUnit | None = msgspec.field(default=None, name="unidadeCompradora")
    modality: _PcpModality | None = msgspec.field(default=None, name="tipoLicitacao")
    published: str | None = msgspec.field(default=None, name="dataHoraPublicacao")
    closes: str | None = msgspec.field(default=None, name="dataHoraFinalPropostas")
    path: str | None = msgspec.field(default=None, name="urlReferencia")


class _PcpBody(msgspec.Struct):
    items: list[_PcpItem] = msgspec.field(name="result")
    pages: int = msgspec.field(default=1, name="pageCount")


_DECODER = msgspec.json.Decoder(_PcpBody)


class PcpSource(PortalSource):
    """Fetches notices from PCP."""

    name = NAME
    path = PATH

    def listings(self, first_day: date, last_day: date, modality: int, ufs: Sequence[str]) -> list[Listing]:
        """Return one listing for each day."""
        days = (first_day + timedelta(number) for number in range((last_day - first_day).days + 1))
        return [Listing(day, day) for day in days]

    def has_modality(self, notice: Notice, modality: int) -> bool:
        """Return whether the name of the notice's modality matches a code."""
        word = MODALITY_WORDS.get(modality)
        return word is not None and word in fold_text(notice["modality_name"] or "")

    def request_params(self, listing: Listing, number: int) -> dict[str, Any]:
        """Return the query parameters for a page."""
        return {
            "dataInicial": listing.first_day.isoformat(),
            "dataFinal": listing.last_day.isoformat(),
            "tipoData": _BY_PUBLICATION,
            "pagina": number,
        }

    def parse_page(self, body: bytes, listing: Listing) -> NoticePage:
        """Parse a response body."""
        page = _DECODER.decode(body)
        return NoticePage([_to_notice(item) for item in page.items], page.pages)


def _to_notice(item: _PcpItem) -> Notice:
    unit, modality = item.unit or _PcpUnit(), item.modality or _PcpModality()
    return {
        "id": f"{NAME}:{item.number}",
        "sources": [NAME],
        "agency": truncated_text(item.agency or unit.name or item.unit_name),
        "cnpj": truncated_text(unit.cnpj or unit.cnpj_upper),
        "uf": truncated_text(unit.uf) or "",
        "city": truncated_text(unit.city),
        "object": truncated_text(item.description) or "",
        "value": None,
        "modality": None,
        "modality_name": truncated_text(modality.name),
        "published_at": truncated_text(item.published),
        "closes_at": truncated_text(item.closes),
        "url": web_link(item.path, WEB_ADDRESS),
    }
