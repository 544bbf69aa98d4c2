"""A crowd that searches at once: each person another day, over simulated portals with the real limits."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
from tests.processes.fleet import new_state_name, remove_shared_state, shared_url
from tests.service.harness import serve_processes

from comporta.testing import ProcurementServer

FIRST_DAY = date(2026, 1, 5)
CACHED_DAY = FIRST_DAY - timedelta(1)
BESIDE_AFTER_SECONDS = 5.0
"""How many seconds after the crowd one more person searches: by then the whole crowd waits."""


class CrowdAnswer(NamedTuple):
    """What one person got, and after how many seconds."""

    seconds: float
    status: int
    body: dict[str, Any]

    @property
    def is_complete(self) -> bool:
        return self.status == 200 and self.body["complete"]

    @property
    def is_pending_with_estimate(self) -> bool:
        is_pending = self.status == 200 and not self.body["complete"] and self.body["pending"]
        return bool(
            is_pending and self.body["estimated_ready_at"] and not self.body["coverage"]["failed_ufs"]
        )


@dataclass
class CrowdResult:
    """The answers of the crowd, and that of one person beside it who needs a single UF."""

    answers: list[CrowdAnswer]
    beside: CrowdAnswer
    pages: dict[str, int]

    def __str__(self) -> str:
        complete = sum(answer.is_complete for answer in self.answers)
        pending = sum(answer.is_pending_with_estimate for answer in self.answers)
        return (
            f"{len(self.answers)} people: {complete} complete, {pending} pending with an estimate, "
            f"slowest {max(answer.seconds for answer in self.answers):.1f} s; "
            f"one UF beside them {self.beside.seconds:.2f} s; pages {self.pages}"
        )


async def search(client: httpx2.AsyncClient, url: str, day: date, **more: Any) -> CrowdAnswer:
    """Search one day, as one person."""
    started = time.monotonic()
    params = {"date_from": day.isoformat(), "date_to": day.isoformat(), **more}
    response = await client.get(f"{url}/v1/search", params=params)
    return CrowdAnswer(time.monotonic() - started, response.status_code, response.json())


async def ask_all(urls: list[str], people: int, beside_after: float) -> tuple[list[CrowdAnswer], CrowdAnswer]:
    """Let each person search all UFs of another day; then let one more search one UF of a cached day."""
    async with httpx2.AsyncClient(timeout=600, limits=httpx2.Limits(max_connections=None)) as client:
        await search(client, urls[0], CACHED_DAY, ufs="SP", user="earlier")
        crowd = [
            asyncio.create_task(
                search(
                    client, urls[number % len(urls)], FIRST_DAY + timedelta(number), user=f"person {number}"
                )
            )
            for number in range(people)
        ]
        await asyncio.sleep(beside_after)  # sleeps: the crowd has to be in the queue
        beside = await search(client, urls[-1], CACHED_DAY, ufs="RJ", user="beside")
        return await asyncio.gather(*crowd), beside


def run_crowd(
    folder: Path,
    people: int,
    *,
    workers: int = 1,
    beside_after: float = 0.0,
    rates: tuple[float, float] = (10.0, 5.0),
    latency: float = 0.3,
    volume: int = 5,
    timeout: float = 60,
) -> CrowdResult:
    """Serve the searches by ``workers`` processes with the default limits."""
    state = new_state_name()
    with ExitStack() as stack:
        server = stack.enter_context(
            ProcurementServer(seed=5, pncp_rate=rates[0], pcp_rate=rates[1], latency=latency, volume=volume)
        )
        stack.callback(remove_shared_state, state)
        served = stack.enter_context(
            serve_processes(
                workers,
                folder,
                COMPORTA_STATE=shared_url(state),
                DATABASE_URL=f"sqlite:///{folder}/crowd.db",
                COMPORTA_SERVICE_ADDRESSES_PNCP=server.pncp.url,
                COMPORTA_SERVICE_ADDRESSES_PCP=server.pcp.url,
                COMPORTA_SERVICE_ALLOW_PRIVATE_ADDRESSES="true",
                COMPORTA_SERVICE_CLIENT_LIMIT="false",
                COMPORTA_SERVICE_SEARCH_TIMEOUT=f"{timeout:g}",
                COMPORTA_UPSTREAM_PNCP_LIMIT=f"{rates[0]:g}/s",
                COMPORTA_UPSTREAM_PCP_LIMIT=f"{rates[1]:g}/s",
            )
        )
        answers, beside = asyncio.run(ask_all([one.address for one in served], people, beside_after))
        pages = {name: portal.accepted for name, portal in server.portals.items()}
        return CrowdResult(answers, beside, pages)
