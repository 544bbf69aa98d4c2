"""Two simulated procurement portals, PNCP and PCP, with rate limits and switchable faults.

In a test, use :class:`ProcurementServer` in a ``with`` statement. As a separate process, run
``python -m comporta.testing.portals``. The switches are attributes, and also available over HTTP::

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

from comporta.testing.fake_tenders import UFS, Tender, as_pcp, as_pncp, pcp_tenders, tenders
from comporta.testing.http_server import (
    Disconnect,
    HttpRequest,
    HttpServer,
    RequestQuota,
    json_response,
    retry_after_header,
)

Query = dict[str, str]

MODES: Final = ("ok", "slow", "flaky", "rate-limited", "dead")
"""``slow`` waits ``delay`` seconds, ``flaky`` answers every second request with a 500, ``rate-limited`` every
request with a 429, and ``dead`` closes the connection without a response."""

DELAY_SECONDS_MAX: Final = 3600.0
DAYS_MAX: Final = 366
WINDOW_SECONDS: Final = 10.0
"""``recent_requests`` and ``busiest`` count requests over this many seconds."""

_WINDOW_REQUESTS_MAX = 100_000
_BURST_SECONDS = 1.5
"""The burst of a portal, in seconds of its rate: requests at the right rate may arrive a little unevenly."""

_REFUSAL_RETRY_SECONDS = 2.0


_PCP_PAGE_SIZE = 10


class _InvalidQueryError(ValueError):
    """A query that the portal does not understand, and the status with which it says so."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


class _PncpQuery(NamedTuple):
    first: date
    last: date
    modality: int
    uf: str
    page: int
    size: int


class SimulatedPortal:
    """One of the portals: how it behaves, and counts of its requests. ``name`` and ``url`` identify it.

    ``mode`` is one of ``MODES``; ``delay`` is in seconds, for ``slow``. Requests for ``failing_ufs`` get a
    500, and so do those for listings that begin on one of ``failing_days`` (``YYYY-MM-DD``). ``accepted``,
    ``refused`` (429) and ``failed`` count requests, ``requests_by_uf`` those for each UF.
    ``too_many`` counts refusals because of the portal's rate limit, not of the mode ``rate-limited``.
    ``busiest`` is the largest number of requests in any 10 s.
    """

    def __init__(self, name: str, url: str, rate: float | None, latency: float = 0.0) -> None:
        self.name = name
        self.url = url
        self.mode = MODES[0]
        self.delay = 1.0
        self.failing_ufs: frozenset[str] = frozenset()
        self.failing_days: frozenset[str] = frozenset()
        self.accepted = self.refused = self.failed = 0
        self.too_many = self.busiest = 0
        self.requests_by_uf: Counter[str] = Counter()
        self._latency = latency
        self._arrivals: deque[float] = deque(maxlen=_WINDOW_REQUESTS_MAX)
        self._quota = RequestQuota(rate, (rate or 0) * _BURST_SECONDS)

    def set(
        self,
        mode: str | None = None,
        delay: float | None = None,
        failing_ufs: list[str] | None = None,
        failing_days: list[str] | None = None,
    ) -> None:
        """Change how the portal behaves. Arguments that are left out keep their value."""
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {mode!r:.50}")
        if delay is not None and not 0 <= delay <= DELAY_SECONDS_MAX:
            raise ValueError(f"delay must be 0 to {DELAY_SECONDS_MAX:g} seconds, got {delay!r:.50}")
        unknown = sorted(set(failing_ufs or ()) - set(UFS))
        if unknown:
            raise ValueError(f"failing_ufs must be among {' '.join(UFS)}, got {unknown[0]!r:.50}")
        days = frozenset(date.fromisoformat(day).isoformat() for day in failing_days or ())
        self.mode = self.mode if mode is None else mode
        self.delay = self.delay if delay is None else delay
        self.failing_ufs = self.failing_ufs if failing_ufs is None else frozenset(failing_ufs)
        self.failing_days = self.failing_days if failing_days is None else days

    def as_dict(self) -> dict[str, Any]:
        """Return the behaviour and the counts, as ``/control`` shows them."""
        return {
            "mode": self.mode,
            "delay": self.delay,
            "failing_ufs": sorted(self.failing_ufs),
            "failing_days": sorted(self.failing_days),
            "accepted": self.accepted,
            "refused": self.refused,
            "failed": self.failed,
            "too_many": self.too_many,
            "recent": self.recent_requests(),
            "busiest": self.busiest,
        }

    def recent_requests(self) -> int:
        """Return how many requests arrived in the last 10 s."""
        since = time.monotonic() - WINDOW_SECONDS
        while self._arrivals and self._arrivals[0] < since:
            self._arrivals.popleft()
        return len(self._arrivals)

    async def _respond(
        self, query: Query, make_page: Callable[[Query], tuple[int, Any]]
    ) -> bytes | Disconnect:
        """Return a response according to the mode; ``make_page`` returns the regular one."""
        self._arrivals.append(time.monotonic())
        self.busiest = max(self.busiest, self.recent_requests())
        if self.mode == "dead":
            self.failed += 1
            return Disconnect()
        wait = _REFUSAL_RETRY_SECONDS if self.mode == "rate-limited" else self._quota.take()
        if wait > 0:
            self.refused += 1
            self.too_many += self.mode != "rate-limited"
            headers = {"retry-after": retry_after_header(wait)}
            return json_response(429, {"message": "too many requests"}, headers)
        self.accepted += 1
        await self._simulate_latency()
        uf = query.get("uf", "")
        self.requests_by_uf[uf if uf in UFS else "?"] += 1
        fails = uf in self.failing_ufs or _dashed_day(query.get("dataInicial", "")) in self.failing_days
        if fails or (self.mode == "flaky" and self.accepted % 2):
            self.failed += 1
            return json_response(500, {"message": "internal error"})
        return json_response(*make_page(query))

    async def _simulate_latency(self) -> None:
        seconds = self.delay if self.mode == "slow" else self._latency * random.uniform(0.5, 1.5)
        if seconds:
            await asyncio.sleep(seconds)


class ProcurementServer(HttpServer):
    """Both portals on one port; ``server.pncp.url`` and ``server.pcp.url`` are their base URLs.

    ::

        with ProcurementServer(seed=7) as server:
            server.pcp.set(mode="dead")

    The same ``seed`` gives the same tenders. ``pncp_rate`` and ``pcp_rate`` are requests a second (``None``:
    no limit); the portals refuse the excess with 429 and ``Retry-After``. A response takes ``latency``
    seconds on average. A UF publishes between ``volume`` and 4 times ``volume`` tenders a day. ``portals``
    maps names to portals.
    """

    def __init__(
        self,
        *,
        seed: int = 1,
        pncp_rate: float | None = 10.0,
        pcp_rate: float | None = 5.0,
        latency: float = 0.0,
        volume: int = 1,
        port: int | None = None,
    ) -> None:
        super().__init__(port)
        self.seed = seed
        self._volume = volume
        self.pncp = SimulatedPortal("pncp", f"{self.url}/pncp", pncp_rate, latency)
        self.pcp = SimulatedPortal("pcp", f"{self.url}/pcp", pcp_rate, latency)
        self.portals = {portal.name: portal for portal in (self.pncp, self.pcp)}

    async def _respond(self, request: HttpRequest) -> bytes | Disconnect:
        path = request.path
        if path.startswith("/control"):
            return self._handle_control(request, path)
        if path == "/pncp/api/consulta/v1/contratacoes/publicacao":
            return await self.pncp._respond(request.query, self._pncp_page)
        if path == "/pcp/v2/licitacao/processos":
            return await self.pcp._respond(request.query, self._pcp_page)
        return json_response(404, {"message": f"no resource at {path:.100}"})

    def _handle_control(self, request: HttpRequest, path: str) -> bytes:
        portal = self.portals.get(path.removeprefix("/control").strip("/"))
        if portal is not None and request.method == "PUT":
            try:
                portal.set(**json.loads(request.body))
            except (TypeError, ValueError) as error:
                return json_response(400, {"message": str(error)[:300]})
        elif path != "/control":
            return json_response(404, {"message": f"PUT to one of {', '.join(self.portals)}"})
        return json_response(200, {name: each.as_dict() for name, each in self.portals.items()})

    def _pncp_page(self, params: Query) -> tuple[int, Any]:
        try:
            query = _parse_pncp_query(params)
        except _InvalidQueryError as error:
            return error.status, {"message": str(error)[:300]}
        found = tenders(self.seed, query.first, query.last, query.uf, query.modality, volume=self._volume)
        matches = [tender for tender in found if tender.on_pncp]
        pages = ceil(len(matches) / query.size)
        if not matches:
            return 204, None
        if query.page > pages:
            return 400, {"message": f"pagina must be 1 to {pages}, got {query.page}"}
        return 200, {
            "data": [as_pncp(tender) for tender in _page_items(matches, query.page, query.size)],
            "totalRegistros": len(matches),
            "totalPaginas": pages,
            "numeroPagina": query.page,
            "paginasRestantes": pages - query.page,
            "empty": False,
        }

    def _pcp_page(self, params: Query) -> tuple[int, Any]:
        try:
            first, last = _parse_days(params, _parse_day)
            page = _parse_integer(params, "pagina", 1, 100_000)
            _parse_integer(params, "tipoData", 1, 1)
        except _InvalidQueryError as error:
            return error.status, {"message": str(error)[:300]}
        matches = pcp_tenders(self.seed, first, last, self._volume)
        pages = ceil(len(matches) / _PCP_PAGE_SIZE)
        return 200, {
            "result": [as_pcp(tender) for tender in _page_items(matches, page, _PCP_PAGE_SIZE)],
            "total": len(matches),
            "pageCount": pages,
            "currentPage": page,
            "limit": _PCP_PAGE_SIZE,
            "offset": (page - 1) * _PCP_PAGE_SIZE,
            "nextPage": page + 1 if page < pages else None,
            "previousPage": page - 1 if page > 1 else None,
        }


def _parse_pncp_query(params: Query) -> _PncpQuery:
    first, last = _parse_days(params, _parse_compact_day)
    query = _PncpQuery(
        first,
        last,
        _parse_integer(params, "codigoModalidadeContratacao", 1, 99),
        params.get("uf", ""),
        _parse_integer(params, "pagina", 1, 100_000),
        _parse_integer(params, "tamanhoPagina", 10, 50),
    )
    if query.uf not in UFS:
        raise _InvalidQueryError(f"uf must be one of {' '.join(UFS)}, got {query.uf!r:.50}")
    return query


def _parse_days(params: Query, parse: Callable[[str], date]) -> tuple[date, date]:
    """Return the first and the last day; the portals answer 422 to days that make no sense."""
    try:
        first, last = (parse(params.get(name, "")) for name in ("dataInicial", "dataFinal"))
    except ValueError as error:
        raise _InvalidQueryError(f"dataInicial and dataFinal must be days: {error}", 422) from None
    if not 0 <= (last - first).days < DAYS_MAX:
        text = f"dataFinal must be 0 to {DAYS_MAX - 1} days after dataInicial, got {last}"
        raise _InvalidQueryError(text, 422)
    return first, last


def _parse_compact_day(text: str) -> date:
    if len(text) != 8 or not (text.isascii() and text.isdigit()):
        raise ValueError(f"a day must be YYYYMMDD, got {text!r:.50}")
    return _parse_day(_dashed_day(text))


def _parse_day(text: str) -> date:
    """Return a day; the time of a date and time is ignored."""
    return date.fromisoformat(text[:10])


def _dashed_day(text: str) -> str:
    """Return a day in the form of either portal as YYYY-MM-DD."""
    return f"{text[:4]}-{text[4:6]}-{text[6:]}" if len(text) == 8 else text[:10]


def _parse_integer(params: Query, name: str, minimum: int, maximum: int) -> int:
    text = params.get(name, "")
    if not (text.isascii() and text.isdigit()) or not minimum <= int(text[:9]) <= maximum:
        raise _InvalidQueryError(f"{name} must be {minimum} to {maximum}, got {text!r:.50}")
    return int(text)


def _page_items(matches: list[Tender], page: int, size: int) -> list[Tender]:
    return matches[(page - 1) * size : page * size]
