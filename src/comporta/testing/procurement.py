"""Two procurement portals, simulated: PNCP's and PCP's shapes, their limits, and switches for bad days.

In a test it is a ``with``; for a demonstration it is a process: ``python -m comporta.testing.portals``.
The switches are attributes, and the same over HTTP::

    curl localhost:8900/control
    curl -X PUT localhost:8900/control/pncp -d '{"mode": "dead"}'
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import date
from math import ceil
from typing import Any, Final, NamedTuple

from comporta.testing.loopback import Allowance, Loopback, NoAnswer, Request, response, told_after
from comporta.testing.tenders import UFS, Tender, as_pcp, as_pncp, tenders

Query = dict[str, str]

MODES: Final = ("ok", "slow", "flaky", "rate-limited", "dead")
"""``slow`` waits ``delay`` seconds, ``flaky`` answers every second request with a 500, ``rate-limited`` every
one with a 429, and ``dead`` hangs up."""

DELAY_SECONDS_MAX: Final = 3600.0
DAYS_MAX: Final = 366
WINDOW_SECONDS: Final = 10.0
"""Over how long ``recent`` and ``busiest`` count."""

_WINDOW_REQUESTS_MAX = 100_000
_SLACK = 1.5
"""What is granted at once, in seconds of the rate: clients who keep to the rate may come a little uneven."""

_REFUSED_SECONDS = 2.0


class _WrongError(ValueError):
    """A question that the portal does not understand."""


class _Question(NamedTuple):
    first: date
    last: date
    modality: int
    uf: str
    page: int
    size: int


class SimulatedPortal:
    """One of the portals: how it behaves from now on, and what it has seen.

    ``mode`` is one of ``MODES``; ``delay`` is in seconds, for ``slow``; ``failing_ufs`` are answered with a
    500. ``accepted``, ``refused`` (429) and ``failed`` count requests, ``asked`` those for each UF.
    ``too_many`` are those of the refused that were above the rate on a good day, ``busiest`` the most
    requests in any ten seconds.
    """

    def __init__(self, name: str, url: str, rate: float | None, latency: float = 0.0) -> None:
        self.name = name
        self.url = url
        self.mode = MODES[0]
        self.delay = 1.0
        self.failing_ufs: frozenset[str] = frozenset()
        self.accepted = self.refused = self.failed = 0
        self.too_many = self.busiest = 0
        self.asked: Counter[str] = Counter()
        self._latency = latency
        self._arrivals: deque[float] = deque(maxlen=_WINDOW_REQUESTS_MAX)
        self._allowance = Allowance(rate, (rate or 0) * _SLACK)

    def set(
        self, mode: str | None = None, delay: float | None = None, failing_ufs: list[str] | None = None
    ) -> None:
        """Change what is given."""
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r:.50}")
        if delay is not None and not 0 <= delay <= DELAY_SECONDS_MAX:
            raise ValueError(f"delay must be 0 to {DELAY_SECONDS_MAX:g} seconds, got {delay!r:.50}")
        unknown = sorted(set(failing_ufs or ()) - set(UFS))
        if unknown:
            raise ValueError(f"failing_ufs must be among {' '.join(UFS)}, got {unknown[0]!r:.50}")
        self.mode = self.mode if mode is None else mode
        self.delay = self.delay if delay is None else delay
        self.failing_ufs = self.failing_ufs if failing_ufs is None else frozenset(failing_ufs)

    def as_dict(self) -> dict[str, Any]:
        """Return how it behaves and what it has seen, as ``/control`` shows it."""
        return {
            "mode": self.mode,
            "delay": self.delay,
            "failing_ufs": sorted(self.failing_ufs),
            "accepted": self.accepted,
            "refused": self.refused,
            "failed": self.failed,
            "too_many": self.too_many,
            "recent": self.recent(),
            "busiest": self.busiest,
        }

    def recent(self) -> int:
        """Return how many requests came in the last ten seconds."""
        since = time.monotonic() - WINDOW_SECONDS
        while self._arrivals and self._arrivals[0] < since:
            self._arrivals.popleft()
        return len(self._arrivals)

    async def answered(self, query: Query, page: Callable[[Query], tuple[int, Any]]) -> bytes | NoAnswer:
        """Return an answer by the mode it is in; ``page`` makes the one for a good day."""
        self._arrivals.append(time.monotonic())
        self.busiest = max(self.busiest, self.recent())
        if self.mode == "dead":
            self.failed += 1
            return NoAnswer()
        wait = _REFUSED_SECONDS if self.mode == "rate-limited" else self._allowance.take()
        if wait > 0:
            self.refused += 1
            self.too_many += self.mode != "rate-limited"
            return response(429, {"message": "too many requests"}, {"retry-after": told_after(wait)})
        self.accepted += 1
        await self._take_time()
        uf = query.get("uf", "")
        self.asked[uf if uf in UFS else "?"] += 1
        if uf in self.failing_ufs or (self.mode == "flaky" and self.accepted % 2):
            self.failed += 1
            return response(500, {"message": "internal error"})
        return response(*page(query))

    async def _take_time(self) -> None:
        """Answer no sooner than a server of this kind would on such a day."""
        seconds = self.delay if self.mode == "slow" else self._latency * random.uniform(0.5, 1.5)
        if seconds:
            await asyncio.sleep(seconds)


class ProcurementServer(Loopback):
    """Both portals on one port: ``server.pncp.url`` and ``server.pcp.url`` are their base addresses.

    ::

        with ProcurementServer(seed=7) as server:
            server.pcp.set(mode="dead")

    The same ``seed`` has the same tenders. Rates are requests a second (``None``: no limit); more are
    refused with 429 and ``Retry-After``. Answers take ``latency`` seconds, more or less.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        pncp_rate: float | None = 10.0,
        pcp_rate: float | None = 5.0,
        latency: float = 0.0,
        port: int | None = None,
    ) -> None:
        super().__init__(port)
        self.seed = seed
        self.pncp = SimulatedPortal("pncp", f"{self.url}/pncp", pncp_rate, latency)
        self.pcp = SimulatedPortal("pcp", f"{self.url}/pcp", pcp_rate, latency)
        self.portals = {portal.name: portal for portal in (self.pncp, self.pcp)}

    async def answered(self, request: Request) -> bytes | NoAnswer:
        """Answer as the portal that was asked, or obey a switch."""
        path = request.path
        if path.startswith("/control"):
            return self._controlled(request, path)
        if path == "/pncp/api/consulta/v1/contratacoes/publicacao":
            return await self.pncp.answered(request.query, self._pncp_page)
        if path == "/pcp/v1/processos":
            return await self.pcp.answered(request.query, self._pcp_page)
        return response(404, {"message": f"nothing at {path:.100}"})

    def _controlled(self, request: Request, path: str) -> bytes:
        portal = self.portals.get(path.removeprefix("/control").strip("/"))
        if portal is not None and request.method == "PUT":
            try:
                portal.set(**json.loads(request.body))
            except (TypeError, ValueError) as error:
                return response(400, {"message": str(error)[:300]})
        elif path != "/control":
            return response(404, {"message": f"PUT to one of {', '.join(self.portals)}"})
        return response(200, {name: one.as_dict() for name, one in self.portals.items()})

    def _pncp_page(self, query: Query) -> tuple[int, Any]:
        try:
            asked = _pncp_question(query)
        except ValueError as error:
            return 400, {"message": str(error)[:300]}
        found = [one for one in self._tenders(asked) if one.on_pncp]
        pages = ceil(len(found) / asked.size)
        if asked.page > max(1, pages) or not found:
            return 204, None
        return 200, {
            "data": [as_pncp(one) for one in _part(found, asked)],
            "totalRegistros": len(found),
            "totalPaginas": pages,
            "numeroPagina": asked.page,
            "paginasRestantes": pages - asked.page,
            "empty": False,
        }

    def _pcp_page(self, query: Query) -> tuple[int, Any]:
        try:
            asked = _pcp_question(query)
        except ValueError as error:
            return 400, {"message": str(error)[:300]}
        found = [one for one in self._tenders(asked) if one.on_pcp]
        return 200, {
            "processos": [as_pcp(one) for one in _part(found, asked)],
            "pagina": asked.page,
            "paginas": ceil(len(found) / asked.size),
            "total": len(found),
        }

    def _tenders(self, asked: _Question) -> list[Tender]:
        return tenders(self.seed, asked.first, asked.last, asked.uf, asked.modality)


def _pncp_question(told: dict[str, str]) -> _Question:
    first, last = (_compact_day(told, name) for name in ("dataInicial", "dataFinal"))
    return _checked(
        _Question(
            first,
            last,
            _integer(told, "codigoModalidadeContratacao", 1, 99),
            told.get("uf", ""),
            _integer(told, "pagina", 1, 100_000),
            _integer(told, "tamanhoPagina", 10, 50),
        )
    )


def _pcp_question(told: dict[str, str]) -> _Question:
    first, last = (date.fromisoformat(told.get(name, "")) for name in ("dataInicial", "dataFinal"))
    return _checked(
        _Question(
            first,
            last,
            _integer(told, "modalidade", 1, 99),
            told.get("uf", ""),
            _integer(told, "pagina", 1, 100_000),
            _integer(told, "tamanhoPagina", 1, 100),
        )
    )


def _checked(asked: _Question) -> _Question:
    if asked.uf not in UFS:
        raise _WrongError(f"uf must be one of {' '.join(UFS)}, got {asked.uf!r:.50}")
    if not 0 <= (asked.last - asked.first).days < DAYS_MAX:
        raise _WrongError(f"dataFinal must be 0 to {DAYS_MAX - 1} days after dataInicial, got {asked.last}")
    return asked


def _compact_day(told: dict[str, str], name: str) -> date:
    text = told.get(name, "")
    if len(text) != 8 or not text.isdigit():
        raise _WrongError(f"{name} must be YYYYMMDD, got {text!r:.50}")
    return date(int(text[:4]), int(text[4:6]), int(text[6:]))


def _integer(told: dict[str, str], name: str, least: int, most: int) -> int:
    text = told.get(name, "")
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:9]) <= most:
        raise _WrongError(f"{name} must be {least} to {most}, got {text!r:.50}")
    return int(text)


def _part(found: list[Tender], asked: _Question) -> list[Tender]:
    return found[(asked.page - 1) * asked.size : asked.page * asked.size]
