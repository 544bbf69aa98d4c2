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


def tenders(seed: int, first: date, last: date, uf: str, modality: int) -> list[Tender]:
    """Return the tenders published from the first day to the last, both included."""
    days = (first + timedelta(day) for day in range((last - first).days + 1))
    return [tender for day in days for tender in _tenders_of_day(seed, day, uf, modality)]


@lru_cache(maxsize=20_000)
def _tenders_of_day(seed: int, day: date, uf: str, modality: int) -> tuple[Tender, ...]:
    random = Random(f"{seed}:{day}:{uf}:{modality}")
    base = day.toordinal() % 10_000 * 100 + UFS.index(uf)
    return tuple(
        _make_tender(random, base * 10 + index, day, uf, modality) for index in range(random.randint(1, 4))
    )


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
        "linkSistemaOrigem": f"https://pncp.example/editais/{tender.number}",
    }


def as_pcp(tender: Tender) -> dict[str, Any]:
    """Return a tender in the format of PCP's listing, with its PNCP identifier if it is on PNCP too."""
    return {
        "id": tender.number,
        "numeroControlePncp": tender.control_number if tender.on_pncp else None,
        "orgao": {"cnpj": tender.cnpj, "nome": tender.agency},
        "uf": tender.uf,
        "municipio": tender.city,
        "objeto": tender.subject,
        "valorEstimado": tender.value,
        "modalidade": {"codigo": tender.modality, "nome": MODALITIES.get(tender.modality, "Outra")},
        "publicadoEm": f"{tender.published}T08:00:00",
        "encerraEm": f"{tender.closing_day}T17:00:00",
        "link": f"https://pcp.example/processos/{tender.number}",
    }
