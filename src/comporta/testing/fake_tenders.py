"""Tenders of the simulated procurement portals: generated from a seed, in the JSON format of each portal.

Pure: the same seed gives the same tenders. A tender is identified by its day, UF, modality and number. Some
appear on one portal, some on the other and some on both.
"""

from __future__ import annotations

from datetime import date, timedelta
from functools import lru_cache
from random import Random
from typing import Any, Final, NamedTuple

UFS: Final = (
    *("AC", "AL", "AM", "AP", "BA", "CE", "DF", "ES", "GO", "MA", "MG", "MS", "MT", "PA"),
    *("PB", "PE", "PI", "PR", "RJ", "RN", "RO", "RR", "RS", "SC", "SE", "SP", "TO"),
)
MODALITIES: Final = {
    4: "Concorrência - Eletrônica",
    5: "Concorrência - Presencial",
    6: "Pregão - Eletrônico",
    7: "Pregão - Presencial",
    8: "Dispensa",
    9: "Inexigibilidade",
}
PCP_MODALITIES: Final = (6,)
"""PCP's users publish tenders of these modalities."""

_SUBJECTS = ("uniformes escolares", "merenda escolar", "medicamentos", "pavimentação", "computadores")
_PURPOSES = ("Aquisição de", "Registro de preços para", "Contratação de serviços de")
_PNCP_SHARE, _BOTH_SHARE = 0.5, 0.3


class Tender(NamedTuple):
    """One public call for offers."""

    number: int
    uf: str
    modality: int
    published: date
    cnpj: str
    agency: str
    city: str
    subject: str
    value: float
    on_pncp: bool
    on_pcp: bool

    @property
    def control_number(self) -> str:
        """The identifier of the tender on PNCP."""
        return f"{self.cnpj}-1-{self.number:06d}/{self.published.year}"

    @property
    def closing_day(self) -> date:
        """The last day for offers, at most ``date.max``."""
        return self.published + min(timedelta(15), date.max - self.published)


def tenders(seed: int, first: date, last: date, uf: str, modality: int, *, volume: int = 1) -> list[Tender]:
    """Return the tenders published from the first day to the last, both included.

    There are between ``volume`` and 4 times ``volume`` tenders a day.
    """
    days = (first + timedelta(day) for day in range((last - first).days + 1))
    return [tender for day in days for tender in _tenders_of_day(seed, day, uf, modality, volume)]


def pcp_tenders(seed: int, first: date, last: date, volume: int = 1) -> list[Tender]:
    """Return what PCP lists for these days: the tenders of all UFs."""
    days = (first + timedelta(day) for day in range((last - first).days + 1))
    return [
        tender
        for day in days
        for uf in UFS
        for modality in PCP_MODALITIES
        for tender in _tenders_of_day(seed, day, uf, modality, volume)
        if tender.on_pcp
    ]


@lru_cache(maxsize=20_000)
def _tenders_of_day(seed: int, day: date, uf: str, modality: int, volume: int) -> tuple[Tender, ...]:
    random = Random(f"{seed}:{day}:{uf}:{modality}")
    base = day.toordinal() % 10_000 * 100 + UFS.index(uf)
    numbers = (base * 10 + index % 10 + index // 10 * 10**7 for index in range(volume * random.randint(1, 4)))
    return tuple(_make_tender(random, number, day, uf, modality) for number in numbers)


def _make_tender(random: Random, number: int, day: date, uf: str, modality: int) -> Tender:
    city, portal_draw = random.randint(1, 50), random.random()
    return Tender(
        number=number,
        uf=uf,
        modality=modality,
        published=day,
        cnpj=f"{random.randint(10**13, 10**14 - 1)}",
        agency=f"Prefeitura {city} de {uf}",
        city=f"Município {city}",
        subject=f"{random.choice(_PURPOSES)} {random.choice(_SUBJECTS)}",
        value=round(random.uniform(1_000, 5_000_000), 2),
        on_pncp=portal_draw < _PNCP_SHARE + _BOTH_SHARE,
        on_pcp=portal_draw >= _PNCP_SHARE,
    )


def as_pncp(tender: Tender) -> dict[str, Any]:
    """Return a tender in the format of PNCP's search API."""
    return {
        "numeroControlePNCP": tender.control_number,
        "orgaoEntidade": {"cnpj": tender.cnpj, "razaoSocial": tender.agency},
        "unidadeOrgao": {"ufSigla": tender.uf, "municipioNome": tender.city},
        "objetoCompra": tender.subject,
        "valorTotalEstimado": tender.value,
        "modalidadeId": tender.modality,
        "modalidadeNome": MODALITIES.get(tender.modality, "Outra"),
        "dataPublicacaoPncp": f"{tender.published}T08:00:00",
        "dataEncerramentoProposta": f"{tender.closing_day}T17:00:00",
        "linkSistemaOrigem": _pncp_link(tender.number),
    }


def _pncp_link(number: int) -> str | None:
    """Return a link as the portal has them: some lack a scheme, and some are missing."""
    if number % 7 == 0:
        return None
    return f"{'www.' if number % 3 == 0 else 'https://'}pncp.example/editais/{number}"


def as_pcp(tender: Tender) -> dict[str, Any]:
    """Return a tender in the format of PCP's listing, which has neither a value nor PNCP's identifier."""
    number = 10 * tender.number + tender.modality
    unit = {
        "nomeUnidadeCompradora": tender.agency,
        "cidade": tender.city,
        "uf": tender.uf,
        "codigoMunicipioIbge": 1_100_000 + tender.number % 1000,
        "CNPJ" if tender.number % 2 else "cnpj": tender.cnpj,
    }
    return {
        "codigoLicitacao": number,
        "identificacao": f"{MODALITIES[tender.modality]} {number}/{tender.published.year}",
        "numero": f"{number}/{tender.published.year}",
        "resumo": tender.subject,
        "razaoSocial": tender.agency,
        "nomeUnidade": tender.agency,
        "unidadeCompradora": unit,
        "tipoLicitacao": {"modalidadeLicitacao": MODALITIES[tender.modality], "tipoLicitacao": "Menor preço"},
        "statusProcessoPublico": {"codigo": 1, "descricao": "Recebendo propostas"},
        "dataHoraPublicacao": f"{tender.published}T11:00:00Z",
        "dataHoraInicioPropostas": None,
        "dataHoraFinalPropostas": f"{tender.closing_day}T20:00:00Z",
        "urlReferencia": f"/processos/{tender.uf.lower()}/{number}",
    }
