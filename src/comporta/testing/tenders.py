"""What simulated procurement portals publish: made up, the same for the same seed, in each portal's shape.

Pure. A tender is known by its day, UF, modality and number; some are on one portal, some on the other, and
some on both, as in life.
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

_THINGS = ("uniformes escolares", "merenda escolar", "medicamentos", "pavimentação", "computadores")
_VERBS = ("Aquisição de", "Registro de preços para", "Contratação de serviços de")
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
    what: str
    value: float
    on_pncp: bool
    on_pcp: bool

    @property
    def control_number(self) -> str:
        """Its name on PNCP."""
        return f"{self.cnpj}-1-{self.number:06d}/{self.published.year}"

    @property
    def closes(self) -> date:
        """The last day for offers; never beyond the last day there is."""
        return self.published + min(timedelta(15), date.max - self.published)


def tenders(seed: int, first: date, last: date, uf: str, modality: int) -> list[Tender]:
    """Return what was published from the first day to the last, both included."""
    days = (first + timedelta(day) for day in range((last - first).days + 1))
    return [tender for day in days for tender in _of_day(seed, day, uf, modality)]


@lru_cache(maxsize=20_000)
def _of_day(seed: int, day: date, uf: str, modality: int) -> tuple[Tender, ...]:
    chance = Random(f"{seed}:{day}:{uf}:{modality}")
    base = day.toordinal() % 10_000 * 100 + UFS.index(uf)
    return tuple(
        _tender(chance, base * 10 + place, day, uf, modality) for place in range(chance.randint(1, 4))
    )


def _tender(chance: Random, number: int, day: date, uf: str, modality: int) -> Tender:
    where, drawn = chance.randint(1, 50), chance.random()
    return Tender(
        number=number,
        uf=uf,
        modality=modality,
        published=day,
        cnpj=f"{chance.randint(10**13, 10**14 - 1)}",
        agency=f"Prefeitura {where} de {uf}",
        city=f"Município {where}",
        what=f"{chance.choice(_VERBS)} {chance.choice(_THINGS)}",
        value=round(chance.uniform(1_000, 5_000_000), 2),
        on_pncp=drawn < _PNCP_SHARE + _BOTH_SHARE,
        on_pcp=drawn >= _PNCP_SHARE,
    )


def as_pncp(tender: Tender) -> dict[str, Any]:
    """Return a tender as PNCP's consultation interface has it."""
    return {
        "numeroControlePNCP": tender.control_number,
        "orgaoEntidade": {"cnpj": tender.cnpj, "razaoSocial": tender.agency},
        "unidadeOrgao": {"ufSigla": tender.uf, "municipioNome": tender.city},
        "objetoCompra": tender.what,
        "valorTotalEstimado": tender.value,
        "modalidadeId": tender.modality,
        "modalidadeNome": MODALITIES.get(tender.modality, "Outra"),
        "dataPublicacaoPncp": f"{tender.published}T08:00:00",
        "dataEncerramentoProposta": f"{tender.closes}T17:00:00",
        "linkSistemaOrigem": f"https://pncp.example/editais/{tender.number}",
    }


def as_pcp(tender: Tender) -> dict[str, Any]:
    """Return a tender as PCP's listing has it; one that is on PNCP too says so."""
    return {
        "id": tender.number,
        "numeroControlePncp": tender.control_number if tender.on_pncp else None,
        "orgao": {"cnpj": tender.cnpj, "nome": tender.agency},
        "uf": tender.uf,
        "municipio": tender.city,
        "objeto": tender.what,
        "valorEstimado": tender.value,
        "modalidade": {"codigo": tender.modality, "nome": MODALITIES.get(tender.modality, "Outra")},
        "publicadoEm": f"{tender.published}T08:00:00",
        "encerraEm": f"{tender.closes}T17:00:00",
        "link": f"https://pcp.example/processos/{tender.number}",
    }
