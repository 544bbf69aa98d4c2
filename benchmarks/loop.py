"""The service's event loop: how long its longest step computes, while fifty clients ask for everything.

A step that computes for long holds up every other client of that worker. Timed is the processor's time of the
loop's own thread: what else the machine does is not counted. The clients are on the same loop, so that parts
of the steps are theirs. What was there before the first round is frozen, as in ``measure.py``: to look
through all modules for garbage takes a step of 60 ms, now and then.
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
    longest = asyncio.run(_measured(effort))
    worst = max(longest)
    return Section(
        "Service, the longest step of its event loop",
        f"{CLIENTS} clients at once on one loop, {len(longest)} rounds; kept searches, new ones, a stream, "
        "health and figures.",
        [Table("Longest step of a round", ["", "median", "worst"], [["", _ms(median(longest)), _ms(worst)]])],
        [Goal(f"service: no step longer than {_ms(STALL_SECONDS)}", _ms(worst), worst < STALL_SECONDS)],
    )


async def _measured(effort: Effort) -> list[float]:
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
    with _timed() as seconds:
        await _round(client, number)
    return max(seconds)


async def _round(client: httpx2.AsyncClient, number: int) -> None:
    await asyncio.gather(*(_visit(client, number, caller) for caller in range(CLIENTS)))


async def _visit(client: httpx2.AsyncClient, number: int, caller: int) -> None:
    """Ask for what is kept, for what nobody asked for before in this round, and as operators do."""
    kept: dict[str, Any] = {**_DAYS, "ufs": "SP,RJ,MG"}
    new = {**_DAYS, "ufs": _STATES[caller % len(_STATES)], "terms": f"round {number}"}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/health", {}),
        ("/v1/search", kept),
        ("/metrics", {}),
        ("/v1/search", new),
        ("/v1/health/cache", {}),
        ("/v1/search/stream", kept),
    ]
    begin = caller % len(asked)  # so that everything is asked for while everything else is
    for path, params in asked[begin:] + asked[:begin]:
        reply = await client.get(path, params=params)
        assert reply.status_code == 200, reply.text


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Time every step of event loops."""
    found = [0.0]
    plain = Handle._run  # noqa: SLF001 - there is no other place at which all steps pass

    def timed(handle: Handle) -> None:
        began = time.thread_time()
        plain(handle)
        found.append(time.thread_time() - began)

    Handle._run = timed  # type: ignore[assignment, method-assign]  # noqa: SLF001
    try:
        yield found
    finally:
        Handle._run = plain  # type: ignore[method-assign]  # noqa: SLF001


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
