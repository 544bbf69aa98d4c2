"""The service's event loop: the CPU time of its longest step while 50 clients send every kind of request.

A long step delays every other client of that worker. The benchmark measures the CPU time of the loop's
thread, so that other programs do not count. The clients run on the same loop and are part of the steps. The
objects that exist before the first round are frozen, as in ``measure.py``: otherwise the garbage collector
would scan all modules now and then, in a step of 60 ms.
"""

from __future__ import annotations

import asyncio
import gc
import time
from asyncio.events import Handle
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx2

from benchmarks.measure import Effort
from benchmarks.report import Goal, Section, Table
from comporta.service.app import create_app
from comporta.service.config import ServiceConfig
from comporta.testing import ProcurementServer

CLIENTS = 50
STALL_SECONDS = 0.05

_DAYS = {"date_from": "2026-01-01", "date_to": "2026-01-10"}
_STATES = ("SP", "RJ", "MG", "BA", "PR")


def steps(effort: Effort) -> Section:
    """Measure the longest step of each round."""
    longest = asyncio.run(_measure(effort))
    worst = max(longest)
    return Section(
        "Service, the longest step of its event loop",
        f"{CLIENTS} concurrent clients on one loop, {len(longest)} rounds; cached and new searches, a "
        "stream, health and metrics.",
        [Table("Longest step of a round", ["", "median", "worst"], [["", _ms(median(longest)), _ms(worst)]])],
        [Goal(f"service: no step longer than {_ms(STALL_SECONDS)}", _ms(worst), worst < STALL_SECONDS)],
    )


async def _measure(effort: Effort) -> list[float]:
    with TemporaryDirectory() as folder, ProcurementServer(seed=5, pncp_rate=None, pcp_rate=None) as portals:
        environ = {
            "COMPORTA_STATE": "memory://bench-loop",
            "DATABASE_URL": f"sqlite:///{folder}/bench.db?timeout=30",
            "COMPORTA_SERVICE_CLIENT_LIMIT": "false",
            "COMPORTA_SERVICE_ALLOW_PRIVATE_ADDRESSES": "true",
            "COMPORTA_SERVICE_ADDRESSES_PNCP": portals.pncp.url,
            "COMPORTA_SERVICE_ADDRESSES_PCP": portals.pcp.url,
        }
        app = create_app(ServiceConfig.load(environ=environ))
        transport = httpx2.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://service", timeout=600) as client,
        ):
            await _round(client, 0)
            gc.collect()
            gc.freeze()
            try:
                return [await _longest(client, number) for number in range(1, effort.rounds + 1)]
            finally:
                gc.unfreeze()


async def _longest(client: httpx2.AsyncClient, number: int) -> float:
    with _step_times() as seconds:
        await _round(client, number)
    return max(seconds)


async def _round(client: httpx2.AsyncClient, number: int) -> None:
    await asyncio.gather(*(_visit(client, number, caller) for caller in range(CLIENTS)))


async def _visit(client: httpx2.AsyncClient, number: int, caller: int) -> None:
    """Send a cached search, a new search, and the requests of operators."""
    cached: dict[str, Any] = {**_DAYS, "ufs": "SP,RJ,MG"}
    new = {**_DAYS, "ufs": _STATES[caller % len(_STATES)], "terms": f"round {number}"}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/v1/health", {}),
        ("/v1/search", cached),
        ("/metrics", {}),
        ("/v1/search", new),
        ("/v1/health/cache", {}),
        ("/v1/search/stream", cached),
    ]
    begin = caller % len(requests)  # so that every kind of request runs together with every other
    for path, params in requests[begin:] + requests[:begin]:
        reply = await client.get(path, params=params)
        assert reply.status_code == 200, reply.text


@contextmanager
def _step_times() -> Iterator[list[float]]:
    """Measure every step of all event loops."""
    durations = [0.0]
    plain = Handle._run  # noqa: SLF001 - the only place that all steps pass

    def timed(handle: Handle) -> None:
        began = time.thread_time()
        plain(handle)
        durations.append(time.thread_time() - began)

    Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001
    try:
        yield durations
    finally:
        Handle._run = plain  # type: ignore[method-assign]  # noqa: SLF001


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
